"""Exports as people send them: ``python -m tests.data.exports FOLDER`` writes them all.

Each holds the same twelve tickets, in one of the many ways in which programs write tables, or has
a fault that every door must name in the same words.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zipfile
from datetime import date
from pathlib import Path
from typing import NamedTuple

from klda.data import GUESSED, Layout

CARDS, PINS, RATES = "Karten & Cards", "pin", "exchange_rate"
CLASSES = {CARDS: 5, PINS: 4, RATES: 3}
TICKETS = [
    (CARDS, "Card not here", 'My card, ordered "last week", is not here yet'),
    (CARDS, "Lost card", "I lost my card; what now?"),
    (CARDS, "Carte perdue", "J'ai perdu ma carte à Orléans"),
    (CARDS, "Karte weg", "Wo ist meine Karte? Ich möchte eine neue"),
    (CARDS, "Second card", "Can I have\na second card\nfor my partner?"),
    (PINS, "PIN blocked", "My PIN is blocked | three wrong attempts"),
    (PINS, "PIN forgotten", "I forgot my PIN, please send a new one"),
    (PINS, "New PIN", "How do I change my PIN?"),
    (PINS, "PIN letter", "The letter with my PIN has not arrived"),
    (RATES, "Rate", "How many euros do I get for 100 dollars?"),
    (RATES, "Rate today", "What is the exchange rate today – roughly?"),
    (RATES, "Wrong rate", "The rate on my statement is wrong"),
]


class Export(NamedTuple):
    """A file, and what becomes of it."""

    name: str
    content: bytes
    classes: dict[str, int] = CLASSES
    error: str = ""  # what is said instead
    layout: Layout = GUESSED  # what a user must say


def rows(case, *, subject=False, header=("text", "label")):
    """Texts and labels; the name of the export makes its rows its own."""
    cells = [(f"{body} ({case})", label) for label, _, body in TICKETS]
    if subject:
        cells = [(title, *pair) for (_, title, _), pair in zip(TICKETS, cells, strict=True)]
    return [header, *cells] if header else cells


def table(cells, delimiter=",", end="\r\n", **options):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=end, **options).writerows(cells)
    return text.getvalue()


def objects(case):
    return [{"id": i, "text": text, "label": la} for i, (text, la) in enumerate(rows(case)[1:])]


def workbook(cells, *, cover=(), merged=(), more=(), hidden=()):
    import openpyxl

    book, file = openpyxl.Workbook(), io.BytesIO()
    if cover:
        book.active.append(cover)
    sheet = book.create_sheet("Tickets") if cover else book.active
    for row in cells:
        sheet.append(row)
    for area in merged:
        sheet.merge_cells(area)
    book.create_sheet("Notes").append(["nothing"])
    for state, lines in (("visible", more), ("hidden", hidden)):
        sheet = book.create_sheet(state)
        sheet.sheet_state = state
        for row in lines:
            sheet.append(row)
    book.save(file)
    return file.getvalue()


def parquet(columns):
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def tickets(case, *names, **more):
    """An export of a help desk: a column for each name, some of them with the tickets."""
    cells = {"SUBJECT": 1, "BODY": 2, "LABEL": 0}
    lines = [[name.partition("=")[0] for name in names]]
    for i, ticket in enumerate(TICKETS):
        kinds = [name.partition("=")[2] for name in names]
        line = [ticket[cells[k]] if k in cells else k.format(i) for k in kinds]
        lines.append(
            [f"{c} ({case})" if k == "BODY" else c for c, k in zip(line, kinds, strict=True)]
        )
    return table(lines, **more)


def make_exports():
    """Return all exports by their names."""
    found = {}

    def add(case, name, content, **more):
        content = content.encode() if isinstance(content, str) else content
        found[case] = Export(name, content, **more)

    # Separators and encodings.
    add("commas", "a.csv", table(rows("commas")))
    add("semicolons", "a.csv", table(rows("semicolons"), ";"))
    add("tabs", "a.tsv", table(rows("tabs"), "\t"))
    add("bars", "a.csv", table(rows("bars"), "|"))
    add("excel names the separator", "a.csv", "sep=;\r\n" + table(rows("sep"), ";"))
    add("byte order mark", "a.csv", "\ufeff" + table(rows("mark")))
    add("unicode text of excel", "a.txt", table(rows("utf-16"), "\t").encode("utf-16"))
    add("utf-16 without a mark", "a.csv", table(rows("le"), ";").encode("utf-16-le"))
    add("windows-1252", "a.csv", table(rows("windows"), ";").encode("cp1252"))
    mac = {"layout": Layout(encoding="mac_roman")}
    mac_rows = table(rows("mac"), end="\r", quoting=csv.QUOTE_ALL)
    add("utf-32", "a.csv", table(rows("utf-32")).encode("utf-32"))
    chinese = "text,label\r\n" + "".join(f"我的银行卡在哪里{i},一般\r\n" for i in range(99))
    chinese += table(rows("chinese", header=None))
    mixed_classes = CLASSES | {"一般": 99}
    add("chinese in utf-16", "a.csv", chinese.encode("utf-16-le"), classes=mixed_classes)
    add("macintosh", "a.csv", mac_rows.encode("mac_roman"), **mac)
    add("gzipped", "a.csv.gz", gzip.compress(table(rows("gzip")).encode()))
    # Rows.
    add("all quoted", "a.csv", table(rows("quoted"), quoting=csv.QUOTE_ALL))
    empty = table(rows("empty")).replace("\r\n", ",,\r\n")
    add("empty rows and columns", "a.csv", f"\r\n,,,\r\n{empty},,,\r\n\r\n")
    joined = rows("joined")
    add(
        "files joined with their headers",
        "a.csv",
        table(joined[:5]) + table(joined[:1] + joined[5:]),
    )
    marked = ("\ufeff" + table(part) for part in (joined[:5], joined[:1] + joined[5:]))
    add("files joined with their marks", "a.csv", "".join(marked))
    add("single quotes", "a.csv", table(rows("single"), "|", quotechar="'", quoting=csv.QUOTE_ALL))
    escaped = [[cell.replace('"', '\\"') for cell in row] for row in rows("mysql")]
    quoted = "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in escaped)
    add("quotes behind backslashes", "a.csv", quoted)
    spaced = table(rows("spaced"), quoting=csv.QUOTE_ALL).replace('","', '", "')
    add("blanks before quotes", "a.csv", spaced)
    add("title of a report", "a.csv", "Tickets of May\r\n\r\n" + table(rows("title"), ";"))
    three = table(rows("titles", subject=True, header=("title", "text", "label")), ";")
    add("two titles", "a.csv", "Tickets of May;;\r\n\r\nMade by Ann;;\r\n" + three)
    ended = table(rows("ended"), ";").replace("\r\n", ";\r\n").replace("label;", "label")
    add("rows end with the separator", "a.csv", ended)
    raw = "".join(f"{' '.join(text.split())}\t{label}\n" for text, label in rows("raw"))
    add("quotes that quote nothing", "a.tsv", raw.replace("My card", '"My card" as one says'))
    # Headers.
    own = table([(i, *row) for i, row in enumerate(rows("r", header=None))])
    add("rows that R has numbered", "a.csv", "text,label\r\n" + own)
    add("no header", "a.csv", table(rows("none", header=None)))
    add("no header, label first", "a.csv", table([r[::-1] for r in rows("first", header=None)]))
    numbered = [(f"T-{i}", *row) for i, row in enumerate(rows("ids", header=None))]
    add("no header, with ids", "a.csv", table(numbered, ";"))
    add("shouting", "a.csv", table(rows("shout", header=("MESSAGE", "Queue "))))
    add("long names", "a.csv", table(rows("long", header=("Customer message", "Ticket_Category"))))
    add("german names", "a.csv", table(rows("german", header=("Anliegen", "Zuordnung")), ";"))
    # Help desks.
    team = ("Summary=SUBJECT", "Issue Type=Task", "Description=BODY", "Custom field (Team)=LABEL")
    add("a custom field", "a.csv", tickets("custom", *team, "Created=0{0}/May/26"))
    seen = ("Number={0}", "Tags=LABEL", "Subject=SUBJECT", "Preview=BODY", "Mailbox=Support desk")
    add("a preview of texts", "a.csv", tickets("preview", *seen))
    web = [*rows("html", subject=True, header=("Subject", "Body HTML", "Category"))]
    web[1:] = [
        (s, f"<div><p>{b}&nbsp;</p><br/></div>".replace("Can I", "<b>Can</b> I"), c)
        for s, b, c in web[1:]
    ]
    add("bodies in html", "a.csv", table(web))
    zendesk = ("Id=4{0}", "Subject=SUBJECT", "Description=BODY", "Status=open", "Group=LABEL")
    add("zendesk", "a.csv", tickets("zendesk", *zendesk, "Tags="))
    jira = ("Summary=SUBJECT", "Issue key=HELP-{0}", "Issue Type=LABEL", "Comment=", "Comment=x")
    add(
        "jira",
        "a.csv",
        tickets("jira", *jira, "Comment=", "Description=BODY", "Labels=", "Labels="),
    )
    components = ("Summary=SUBJECT", "Issue Type=Request", "Description=BODY", "Component/s=LABEL")
    add("jira with components", "a.csv", tickets("components", *components))
    incidents = ("number=INC{0}", "short_description=SUBJECT", "description=BODY")
    add("servicenow", "a.csv", tickets("incidents", *incidents, "category=LABEL", "state=Closed"))
    tagged = ("Subject=SUBJECT", "Body=", "Message=BODY", "Category=", "Queue=LABEL")
    add("empty columns with usual names", "a.csv", tickets("tagged", *tagged))
    freshdesk = ("Ticket ID={0}", "Subject=SUBJECT", "Status=Closed", "Priority=Low", "Type=LABEL")
    add(
        "freshdesk", "a.csv", tickets("freshdesk", *freshdesk, "Agent=No Agent", "Description=BODY")
    )
    outlook = ("Subject=SUBJECT", "Body=BODY", "From: (Name)=Müller", "Importance=Normal")
    sent = tickets("outlook", *outlook, "Categories=LABEL", quoting=csv.QUOTE_ALL)
    add("outlook", "a.csv", sent.encode("cp1252"))
    grouped = ("Ticket ID={0}", "Group=Support", "Ticket description=BODY", "Type=LABEL", "Tags=")
    add("one group for all", "a.csv", tickets("grouped", *grouped))
    strange = ("Nr={0}", "Anfrage=BODY", "Bereich=LABEL", "Stand={0}.1.2026")
    add("by content", "a.csv", tickets("content", *strange, delimiter=";"))
    asked = (
        "Timestamp=5/{0}/2026 10:00:00",
        "What is your question?=BODY",
        "Who answers that?=LABEL",
    )
    add("google forms", "a.csv", tickets("forms", *asked))
    replies = "Thank you for your message, which we will answer within", "Please call us as soon as"
    lines = [("Nr", "Stand", "Quelle", "Kurz", "Antwort", "Link", "Anfrage", "Bereich")]
    for i, (label, title, body) in enumerate(TICKETS):
        link = f"https://desk.example/{'x' * 90}/{i}"
        reply = f"{replies[i % 2]} two working days of your request."
        text = f"{body} (others)"
        lines.append(
            (str(i), f"{1 + i % 3}.5.2026", "web", f"{title} it is", reply, link, text, label)
        )
    add("by content, among columns like it", "a.csv", table(lines))
    # Inboxes, surveys, and programs that label.
    chats = ("conversation_id={0}", "author_type=user", "subject=SUBJECT", "body=BODY", "tags=")
    add("intercom", "a.csv", tickets("chats", *chats, "team_assignee_name=LABEL", "state=closed"))
    tagged = ("Ticket id={0}", "Initial channel=email", "Assignee name=Ann", "Tags=")
    tagged = (*tagged, "Subject=SUBJECT", "First message body=BODY", "Intents=LABEL")
    add("gorgias", "a.csv", tickets("gorgias", *tagged))
    felt = ("tweet_id=57{0}", "airline_sentiment=LABEL", "airline=Delta", "name=jo", "text=BODY")
    add("tweets with a sentiment", "a.csv", tickets("tweets", *felt))
    asked = ("StartDate=2026-05-{0:02} 10:00", "ResponseId=R_{0}", "Q1=BODY", "Q2=LABEL")
    first, *answers = tickets("qualtrics", *asked).splitlines(keepends=True)
    more = [("Start Date", "Response ID", "How can we help?", "Team")]
    more.append([json.dumps({"ImportId": name}) for name in ("startDate", "_id", "QID1", "QID2")])
    add("three rows of a header", "a.csv", first + table(more) + "".join(answers))
    asked = ("Respondent ID=118{0}", "What is your question?=BODY", "Which area?=LABEL", "=")
    first, *answers = tickets("monkey", *asked).splitlines(keepends=True)
    more = table([("", "Open-Ended Response", "Response", "Other (please specify)")])
    add("two rows of a header", "a.csv", first + more + "".join(answers))
    of_index = [(str(i), *row) for i, row in enumerate(rows("index", header=None))]
    add("an index of pandas", "a.csv", table([("", "text", "label"), *of_index]))
    codes = {label: str(i) for i, label in enumerate(CLASSES)}
    coded = [(text, codes[la], la) for text, la in rows("coded", header=None)]
    add("numbers and names of classes", "a.csv", table([("text", "label", "label_text"), *coded]))
    ends = [(text.replace("\n", "\r\n"), la) for text, la in rows("ends")]
    add("windows line ends in texts", "a.csv", table(ends, end="\n"))
    smart = [(f"“{text}” – it’s urgent…", la) for text, la in rows("smart", header=None)]
    add("typographic quotes", "a.csv", table([("text", "label"), *smart]).encode("cp1252"))
    arabic = [(f"أين بطاقتي رقم {i} من فضلك؟", "بطاقات 💳") for i in range(9)]
    arabic = [("النص", "التصنيف"), *arabic, *rows("arabic", header=None)]
    add("right to left, and emoji", "a.csv", table(arabic), classes=CLASSES | {"بطاقات 💳": 9})
    # Other kinds of files.
    add(
        "workbook", "a.xlsx", workbook(rows("xlsx", subject=True, header=("Title", "Body", "Team")))
    )
    body = rows("cover", header=("Date", "Question", "Team"))[1:]
    dated = [("Date", "Question", "Team"), *((date(2026, 5, 1), *row) for row in body)]
    add("a cover sheet first", "a.xlsx", workbook(dated, cover=["Tickets of", date(2026, 5, 31)]))
    groups = [("Ticket", "", "", "Handling", ""), ("No.", "Date", "Message", "Team", "Solved")]
    merged = [*groups, *((1, date(2026, 5, 1), *row, True) for row in rows("merged")[1:])]
    add("a merged header", "a.xlsx", workbook(merged, merged=("A1:C1", "D1:E1")))
    groups = [("Handled in May",), ("Ticket", "Content", "", "", ""), groups[1]]
    named = [*groups, *merged[2:]]
    add("a merged header that names columns", "a.xlsx", workbook(named, merged=("B2:E2",)))
    months, lists = rows("months"), [("value", "meaning"), *((str(i), "none") for i in range(99))]
    several = workbook(months[:6], more=months[:1] + months[6:], hidden=lists)
    add("a sheet for each month", "a.xlsx", several)
    add("workbook called csv", "a.csv", workbook(rows("misnamed")))
    add("csv called xls", "a.xls", table(rows("misnamed too"), "\t"))
    add("json", "a.json", json.dumps(objects("json")))
    add("json, indented", "a.json", json.dumps(objects("indented"), indent=2, ensure_ascii=False))
    keyed = {str(i): row for i, row in enumerate(objects("keyed"))}
    add("json by rows of pandas", "a.json", json.dumps(keyed, indent=1))
    columns = {name: {i: row[name] for i, row in keyed.items()} for name in ("text", "label")}
    add("json by columns of pandas", "a.json", json.dumps(columns))
    fields = {"custom_fields": [{"id": i, "value": None} for i in range(200)]}
    wide = "".join(json.dumps(fields | row) + "\n" for row in objects("wide"))
    add("json in long lines", "a.json", wide)
    add("json under a key", "a.json", json.dumps({"tickets": objects("under"), "count": 12}))
    deep = {"data": {"total": 12, "items": objects("deep")}}
    add("json deep inside", "a.json", json.dumps(deep, indent=1))
    lines = "".join(json.dumps(row) + "\n" for row in objects("jsonl"))
    add("jsonl", "a.jsonl", lines)
    comments = [{"body": "We look into it.", "type": "public"}]
    desk = [
        {"Anfrage": text, "Bereich": label, "comments": comments}
        for text, label in rows("comments", header=None)
    ]
    add("lists in the rows of a json", "a.json", json.dumps({"offset": 0, "tickets": desk}))
    luis = {
        "intents": [{"name": name} for name in CLASSES],
        "utterances": [{"text": text, "intent": la} for text, la in rows("luis", header=None)],
    }
    add("the second list of a json", "a.json", json.dumps(luis))
    hub = [{"row_idx": i, "row": row} for i, row in enumerate(objects("hub"))]
    hub = {"features": [{"name": "text"}, {"name": "label"}], "rows": hub}
    add("rows inside rows", "a.json", json.dumps(hub))
    inside = [
        {
            "id": i,
            "ticket": {"subject": title, "body": f"{body} (inside)"},
            "meta": {"queue": label},
        }
        for i, (label, title, body) in enumerate(TICKETS)
    ]
    add("objects in objects", "a.jsonl", "".join(json.dumps(row) + "\n" for row in inside))
    add("no suffix", "export", lines.replace("jsonl", "bare"))
    parts = zip(*rows("parquet")[1:], strict=True)
    add("parquet", "a.parquet", parquet(dict(zip(("Text", "Class"), parts, strict=True))))
    one_line = [(" ".join(text.split()), label) for text, label in rows("fasttext")[1:]]
    labels = {label: label.replace(" ", "_") for label in CLASSES}
    fasttext = "".join(f"__label__{labels[label]} {text}\n" for text, label in one_line)
    add("fasttext", "a.txt", fasttext, classes={labels[k]: n for k, n in CLASSES.items()})
    rasa = 'version: "3.1"\nnlu:\n- synonym: card\n  examples: |\n    - [Visa](card)\n'
    for label in CLASSES:
        texts = [text for text, own in one_line if own == label]
        examples = "".join(f"    - {text} [Visa](card)\n" for text in texts)
        rasa += f"- intent: {json.dumps(label)}\n  examples: |\n{examples}"
    add("rasa", "nlu.yml", rasa)
    # Labels.
    unseen = [
        (text, ("", "\u200b")[i % 2] + label + ("\u00a0", "", "\u200f")[i % 3])
        for i, (text, label) in enumerate(rows("unseen", header=None))
    ]
    add("labels with what can't be seen", "a.csv", table([("text", "label"), *unseen]))
    things = [{**row, "label": [{"id": 1, "name": row["label"]}]} for row in objects("things")]
    add("labels that are objects", "a.json", json.dumps(things))
    shown = [{**row, "label": [{"displayName": row["label"]}]} for row in objects("shown")]
    add("labels that have a display name", "a.json", json.dumps(shown))
    studio = [
        {
            "id": i,
            "data": {"text": row["text"]},
            "annotations": [
                {"result": [{"type": "choices", "value": {"choices": [row["label"]]}}]},
                {"result": [], "was_cancelled": True},
            ],
        }
        for i, row in enumerate(objects("studio"))
    ]
    add("label studio", "a.json", json.dumps(studio))
    written = [(text, str([label])) for text, label in rows("written", header=None)]
    add("lists written as python does", "a.csv", table([("text", "labels"), *written]))
    codes = [{**row, "label": float(i % 2)} for i, row in enumerate(objects("floats"))]
    add("labels with a point", "a.json", json.dumps(codes), classes={"0": 6, "1": 6})
    spam = [{**row, "label": i % 3 == 0} for i, row in enumerate(objects("spam"))]
    add(
        "labels that are true or false", "a.json", json.dumps(spam), classes={"true": 4, "false": 8}
    )
    tagged = [{**row, "label": [row["label"]]} for row in objects("tags")]
    add("labels in lists", "a.json", json.dumps(tagged))
    odd = [*rows("odd"), ("who knows (odd)", "N/A"), ("both of them (odd)", f"{PINS};{RATES}")]
    add("odd labels", "a.csv", table(odd), classes=CLASSES | {"N/A": 1, f"{PINS};{RATES}": 1})
    many = [(f"question number {i} about my card", f"class {i % 50}") for i in range(50_000)]
    header = [("text", "label")]
    counts = {f"class {i}": 1000 for i in range(50)}
    add("fifty thousand", "a.csv", table(header + many), classes=counts)

    # Faults.
    def fault(case, name, content, error, **more):
        add(case, name, content, classes={}, error=error, **more)

    gap = [*rows("gap")[:4], ("no label", ""), *rows("gap")[4:]]
    fault("a label missing", "a.csv", table(gap), "line 5: the label is empty.")
    fault("a text missing", "a.csv", table([*rows("t"), (" ", PINS)]), ": the text is empty.")
    mixed = table(rows("mixed")).encode() + "déjà vu,pin\r\n".encode("cp1252")
    fault("two encodings", "a.csv", mixed, "not UTF-8, unlike what comes before.")
    russian = "text,label\r\nгде моя карта,cards\r\n".encode("cp1251")
    fault("another script", "a.csv", russian, "neither UTF-8 nor Windows-1252. Name its encoding")
    fault(
        "a web page",
        "a.xls",
        "<html><table><tr><td>text",
        "is a web page or XML: open it in a spread",
    )
    fault(
        "a picture",
        "a.csv",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1",
        "is an image: give a folder",
    )
    fault("one column", "a.csv", table([("text",), ("hello there",)]), "one column and no labels.")
    torn = table(rows("torn")) + '"an open quote,pin\r\n'
    fault("an open quote", "a.csv", torn, "never closed")
    unquoted = table(rows("unquoted")) + "one, two, three,pin\r\n"
    fault("a comma too many", "a.csv", unquoted, "it has 4 columns, but the first line has 2.")
    short = [(*row, "a note") for row in rows("short")]
    fault("a cell too few", "a.csv", table([*short, ("a text", PINS)]), "2 columns, but the first")
    by_column = {"text": [TICKETS[0][2]], "label": [CARDS]}
    fault("json by columns", "a.json", json.dumps(by_column), "expected one JSON object per row")
    vague = tickets("vague", "Nr={0}", "Anfrage=BODY", "Ort=LABEL", "Art=LABEL")
    fault("two columns of classes", "a.csv", vague, "can't tell which column holds the label")
    fault("not there", "a.csv", table(rows("x")), "no column 'body'", layout=Layout("body"))
    fault("a footer", "a.csv", table(rows("footer")) + "\n\nTotal: 12 rows\n", "1 column, but the")
    fault("hebrew", "a.csv", "text,label\r\nאיפה הכרטיס,כרטיס\r\n".encode("cp1255"), "Name its enc")
    chat = {"subject": "Card", "body": [{"from": "me", "text": "Where is it?"}], "label": CARDS}
    fault("messages in a list", "a.jsonl", json.dumps(chat), "must be a string; got list: [{'from'")
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": PINS}]}
    fault("chats for tuning", "a.jsonl", json.dumps(chat), "only lists in messages; expected one")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("tickets.csv", table(rows("packed")))
    fault("an archive", "a.zip", packed.getvalue(), "is an archive, not a table. Unpack it first.")
    fault("nothing", "a.csv", b"", "is empty")
    fault("a header only", "a.csv", "text,label\r\n", "is empty")
    fault("half a json", "a.json", json.dumps(objects("half"))[:-20], "not JSON")
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for number, (case, export) in enumerate(make_exports().items(), 1):
        target = folder / f"{number:02} {case}" / export.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(export.content)
