"""The language of texts, where a few words or the script show it."""

from __future__ import annotations

import csv
import gzip

import pytest

from klda.inspection.languages import NAMES, WORDS, language_of

TEXTS = {
    "en": "How do I change the PIN of my card? I have lost it and the bank is closed on Sunday.",
    "de": "Wie ändere ich die PIN für meine Karte? Ich habe sie verloren und die Bank ist zu.",
    "fr": "Comment changer le code de ma carte? Je ne la trouve pas et la banque est fermée.",
    "es": "¿Cómo cambio el PIN de mi tarjeta? No la encuentro y el banco está cerrado por hoy.",
    "nl": "Hoe kan ik de pincode van mijn kaart wijzigen? Ik heb het niet en de bank is dicht.",
    "tr": "Kartım için bir şifre nasıl alınır? Bu benim ilk kartım ve ne kadar sürer bilmiyorum.",
    "ru": "Как изменить код моей карты? Я потерял её, а банк закрыт в воскресенье.",
    "uk": "Як змінити код моєї картки? Я її загубив, а банк у неділю зачинено.",
    "ja": "カードの暗証番号を変更するにはどうすればいいですか。銀行は日曜日に閉まっています。",
    "zh": "我怎样才能更改银行卡的密码?我把它弄丢了,而且银行星期天不开门。",
    "ar": "كيف يمكنني تغيير رمز بطاقتي؟ لقد فقدتها والبنك مغلق يوم الأحد.",
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_language_is_told_by_its_script_or_its_commonest_words(language):
    assert language_of([TEXTS[language]] * 3) == language
    assert language in NAMES


@pytest.mark.parametrize("texts", [[], ["PIN"], ["card lost"], ["4711 0815"], ["x1 y2 z3"] * 50])
def test_what_shows_no_language_has_none(texts):
    assert language_of(texts) is None


def test_every_language_has_a_name():
    assert WORDS.keys() <= NAMES.keys()


@pytest.mark.data
def test_data_sets_are_in_their_languages(data_dir):
    expected = {
        "gnad-german": "de",
        "xsid-de": "de",
        "xsid-it": "it",
        "xsid-tr": "tr",
        "xsid-zh": "zh",
    }
    for path in sorted(data_dir.glob("*/*/train.csv.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            texts = [row["text"] for row in csv.DictReader(file)]
        for start in range(0, min(len(texts), 2000), 200):
            said = language_of(texts[start : start + 200])
            assert said in (expected.get(path.parent.name, "en"), None), (path, start)
