"""Which column is which, and whether there is a header: by names, by content, or as asked for."""

from __future__ import annotations

import pytest

from klda.data import Layout, TableError, open_bytes


def found(content, labels=True, **layout):
    """The columns that are read, and whether the first line is a header."""
    table = open_bytes(content.encode(), name="a.csv", layout=Layout(**layout))
    chosen = next(table.batches(labels=labels)).layout
    return "+".join(chosen.inputs), chosen.label, chosen.header


NAMES = {
    "text,label": ("text", "label"),
    "Utterance,Intent": ("Utterance", "Intent"),
    "id,category,query": ("query", "category"),
    "label,anything": ("anything", "label"),
    "message,queue": ("message", "queue"),
    "Ticket text,ticket_category,id": ("Ticket text", "ticket_category"),
    "subject,body,team": ("subject+body", "team"),
    "title,class": ("title", "class"),
    "text,text length,label": ("text", "label"),
    "comment,comment,text,tag,tags": ("text", "tag"),
}


@pytest.mark.parametrize("header", NAMES)
def test_columns_are_found_by_their_names(header):
    row = ",".join(f"<{i}>" for i, _ in enumerate(header.split(",")))
    assert found(f"{header}\n{row}\n") == (*NAMES[header], True)


CONTENT = {
    "who,what,when\nAnn,my card is lost,1.2.26\nBob,my pin is gone,3.2.26\n": ("what", None),
    "nr,frage,ort\n1,wo ist es,a\n2,was ist das,a\n3,wer ist da,b\n4,und wann,b\n": (
        "frage",
        "ort",
    ),
    "a,b\nwo ist es,x\nwas ist das,x\nwer ist da,y\nund wann,y\n": ("a", "b"),
}


@pytest.mark.parametrize("content", CONTENT)
def test_columns_are_found_by_their_content(content):
    text, label = CONTENT[content]
    assert found(content, labels=label is not None)[:2] == (text, label)
    if label is None:
        with pytest.raises(TableError, match="can't tell which column holds the label"):
            found(content)


HEADERS = {
    "text,label\n": True,
    "hello,greeting\nbye,farewell\n": False,
    "where is it,topic\nhow much,price\nis it far,topic\n": False,
    "are you there,y\nno thanks,n\n": False,
    "Die Frage,Art\nich suche meine Karte seit einer Woche,a\nwie hoch ist er heute,b\n": True,
    "id,note,kind\n1,hello you,a\n2,bye now,b\n": True,
    "Why?,Ann,a\nmy card is lost,Bob,b\nmy pin is gone,Eve,c\n": False,
    "hello\nbye\nhello\n": False,
    "my card,a,Ann\nmy card is lost,a,Bob\n": False,
    "1001,hello you,greeting\n1002,bye you,farewell\n1003,hi you,greeting\n": False,
}


@pytest.mark.parametrize("content", HEADERS)
def test_a_header_is_told_from_a_row(content):
    rows = content if content.count("\n") > 1 else content + "a,b\n"
    assert found(rows, labels=len(rows.split("\n")[0].split(",")) == 2)[2] == HEADERS[content]


def test_a_first_line_without_a_label_is_no_title():
    with pytest.raises(TableError, match="line 1: the label is empty"):
        found("where is my card,\nhow much is it,price\n")


def test_a_short_table_of_several_columns_has_a_header():
    with pytest.raises(TableError, match="its columns are: who, says, kind"):
        found("who,says,kind\nAnn,hi,x\nBob,bye,y\n")


def test_a_label_that_all_rows_share_gives_way_to_others():
    rows = [f"{text},Support,{kind}" for text, kind in (("hi there", "a"), ("bye now", "b"))]
    assert found("\n".join(["message,Group,Type", *rows]))[1] == "Type"
    assert found("\n".join(["message,label,Type", *rows]))[1] == "label"  # that is its job
    assert found("message,Group,Type\nhi there,Support,a\n")[1] == "Group"
    named = "message,label,label_text\nhi there,0,greeting\nbye now,1,farewell\n"
    assert found(named)[1] == "label_text"


def test_what_is_asked_for_counts():
    content = "text,label,Body,Queue\nt,l,b,q\n"
    assert found(content, input="body", label="QUEUE") == ("Body", "Queue", True)
    assert found(content, input=("Body", "text")) == ("Body+text", "label", True)
    assert found(content, input="label", label="text") == ("label", "text", True)
    assert found(content, input="label", labels=False) == ("label", None, True)
    assert found("text,label\nhello,a\n", header=False) == ("1", "2", False)
    assert found("hello,a\nbye,b\n", header=False, input="2") == ("2", "1", False)
    assert found("Subject,Body\na,b\n", labels=False) == ("Subject+Body", None, True)
    for layout, message in {
        Layout("subject"): "no column 'subject'; its columns are: text, label, Body, Queue",
        Layout(label="team"): "no column 'team'",
        Layout("text", "text"): "can't hold both the text and the label",
    }.items():
        with pytest.raises(TableError, match=message):
            found(content, **layout._asdict())


def test_numbers_of_rows_are_no_labels():
    rows = [f"where is my card number {i}?" for i in range(6)]
    numbered = "\n".join(["id,message", *(f"{i},{text}" for i, text in enumerate(rows))])
    with pytest.raises(TableError, match="can't tell which column holds the label"):
        found(numbered)
    kinds = "\n".join(["kind,message", *(f"{i % 2},{text}" for i, text in enumerate(rows))])
    assert found(kinds)[:2] == ("message", "kind")
