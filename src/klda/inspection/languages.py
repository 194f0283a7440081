"""Which language texts are written in: by their script, or by their commonest words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice

TEXTS = 200  # that are looked at
FEWEST_WORDS = 30  # fewer show no language
# A language must have this fraction of the words, and so many times those of the next.
LEAST, LEAD = 0.08, 1.5

_NAMES = """
en English, de German, fr French, es Spanish, pt Portuguese, it Italian, nl Dutch, sv Swedish,
da Danish, pl Polish, cs Czech, tr Turkish, fi Finnish, hu Hungarian, ro Romanian, id Indonesian,
vi Vietnamese, ru Russian, uk Ukrainian, el Greek, ar Arabic, he Hebrew, hi Hindi, th Thai,
ja Japanese, ko Korean, zh Chinese
"""
NAMES = dict(entry.split() for entry in _NAMES.split(","))
# The commonest words that few other languages have.
WORDS = {
    "en": "the and is to of in that it for you was with on are this have i my what how do can",
    "de": "der die und das ist ich nicht ein eine zu den mit auf für wie mein meine kann wir es",
    "fr": "le la les et est je de des un une pas que pour mon ma dans ce vous sur avec comment",
    "es": "el la los que y es en un una por mi no para con se lo como cuál qué puedo está del",
    "pt": "o a os que e é em um uma não para com meu minha como eu do da no na você por está",
    "it": "il la che e è di un una non per mio mia come con del della sono ho cosa gli posso",
    "nl": "de het een en is ik niet van dat op te mijn hoe kan wat voor met zijn je er aan",
    "sv": "och att det är jag en ett inte på som min hur kan för med vad av till den har om",
    "da": "og at det er jeg en et ikke på som min hvordan kan for med hvad af til den har om",
    "pl": "i w nie na się jest to z że do jak mój moja czy co mam mogę dla po jestem moje",
    "cs": "a je se v na to že s jak můj moje nemohu co mám z do pro ale jsem mi kde když",
    "tr": "ve bir bu ne için nasıl benim mi ile da de çok var ben kadar neden olarak gibi",
    "fi": "ja on ei se että mitä miten minun en voi olen kun ovat mutta minä tämä onko voin",
    "hu": "a az és nem hogy egy is van meg mi hol miért vagyok lehet én kell ez mennyi",
    "ro": "și de la nu un o este pe cu ce mai care să am pentru cum meu mea din sunt",
    "id": "yang dan di saya tidak ini itu untuk dengan apa bagaimana bisa dari ada ke anda",
    "vi": "và của tôi là không có được cho một làm thế nào gì này với các bạn để đã",
}
# Scripts that show the language; kana before Han, which Japanese has, too.
SCRIPTS = {
    "ja": "\u3040-\u30ff",
    "ko": "\uac00-\ud7af\u1100-\u11ff",
    "zh": "\u4e00-\u9fff",
    "uk": "іїєґІЇЄҐ",
    "ru": "\u0400-\u04ff",
    "el": "\u0370-\u03ff",
    "ar": "\u0600-\u06ff",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
}
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_LANGUAGES: dict[str, list[str]] = {}
for _language, _words in WORDS.items():
    for _word in _words.split():
        _LANGUAGES.setdefault(_word, []).append(_language)


def language_of(texts: Iterable[str]) -> str | None:
    """Return the language of texts as an ISO 639-1 code; None if it is not clear."""
    sample = "\n".join(islice(texts, TEXTS))
    letters = len(_LETTER.findall(sample))
    for language, characters in SCRIPTS.items():
        share = 0.02 if language == "uk" else 0.3
        if len(re.findall(f"[{characters}]", sample)) > share * max(letters, FEWEST_WORDS):
            return language
    words = _WORD.findall(sample.casefold())
    votes: Counter[str] = Counter()
    for word in words:
        for language in _LANGUAGES.get(word, ()):
            votes[language] += 1
    (best, count), (_, second) = (votes.most_common(2) + [("", 0)] * 2)[:2]
    clear = count >= LEAST * len(words) and count >= LEAD * second
    return best if clear and len(words) >= FEWEST_WORDS else None
