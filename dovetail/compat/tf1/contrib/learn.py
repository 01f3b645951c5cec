"""What programs still take from `tf.contrib.learn`: names of modes, and a vocabulary of words. `tf.estimator` replaced the rest."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....io.files import GFile
from ..names.inner_modules import absent

_WORD = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z][a-z]+(?=[A-Z])|[\'\w\-]+")


class ModeKeys:
    """What a model is built for. Unlike in `dt.estimator.ModeKeys`, predictions are called `INFER`."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"


class CategoricalVocabulary:
    """Numbers of words, in the order in which they came; 0 is any other word.

    Args:
        unknown_token: what `reverse` gives for 0.
        support_reverse: accepted: `reverse` always works.
    """

    def __init__(self, unknown_token: str = "<UNK>", support_reverse: bool = True) -> None:
        self._numbers, self._words, self._counts = {unknown_token: 0}, [unknown_token], Counter[str]()
        self._frozen = False

    def __len__(self) -> int:
        return len(self._words)

    def freeze(self, freeze: bool = True) -> None:
        """Whether new words are counted as unknown ones from now on."""
        self._frozen = freeze

    def get(self, category: str) -> int:
        """The number of a word, a new one if it is new."""
        if category not in self._numbers and not self._frozen:
            self._numbers[category] = len(self._words)
            self._words.append(category)
        return self._numbers.get(category, 0)

    def add(self, category: str, count: int = 1) -> None:
        """Count a word."""
        if self.get(category):
            self._counts[category] += count

    def trim(self, min_frequency: int, max_frequency: int = -1) -> None:
        """Keep words that came more than `min_frequency` times (and fewer than `max_frequency`, if that is above 0): the frequent first."""
        words = sorted(sorted(self._counts), key=lambda w: -self._counts[w])
        kept = [w for w in words if self._counts[w] > min_frequency and not 0 < max_frequency <= self._counts[w]]
        self._words = [self._words[0], *kept]
        self._numbers = {word: number for number, word in enumerate(self._words)}

    def reverse(self, class_id: int) -> str:
        """The word of a number."""
        return self._words[class_id]


def _words_of(documents: Iterable[str]) -> Iterator[list[str]]:
    """The words of each document: without white space, most punctuation, and parts of `CamelCase` each by itself."""
    return (_WORD.findall(document) for document in documents)


class VocabularyProcessor:
    """Turns documents into rows of numbers, a number for each word.

    Args:
        max_document_length: length of each row: longer documents are cut off, shorter ones get zeros.
        min_frequency: words that come no more often are dropped by `fit`; 0: all are kept.
        vocabulary: a `CategoricalVocabulary`; None: a new one.
        tokenizer_fn: gives the list of words of each of many documents; None: words as most languages write them.

    >>> processor = VocabularyProcessor(4)
    >>> np.array(list(processor.fit_transform(["a red fox", "a fox"])))
    array([[1, 2, 3, 0],
           [1, 3, 0, 0]])
    """

    def __init__(
        self,
        max_document_length: int,
        min_frequency: int = 0,
        vocabulary: CategoricalVocabulary | None = None,
        tokenizer_fn: Callable[[Iterable[str]], Iterable[Iterable[str]]] | None = None,
    ) -> None:
        self.max_document_length, self.min_frequency = max_document_length, min_frequency
        self.vocabulary_ = vocabulary or CategoricalVocabulary()
        self._tokenizer = tokenizer_fn or _words_of

    def fit(self, raw_documents: Iterable[str], unused_y: Any = None) -> VocabularyProcessor:
        """Learn the words of documents; words that come later are unknown ones."""
        for words in self._tokenizer(raw_documents):
            for word in words:
                self.vocabulary_.add(word)
        if self.min_frequency > 0:
            self.vocabulary_.trim(self.min_frequency)
        self.vocabulary_.freeze()
        return self

    def transform(self, raw_documents: Iterable[str]) -> Iterator[npt.NDArray[np.int64]]:
        """The row of each document."""
        for words in self._tokenizer(raw_documents):
            row = np.zeros(self.max_document_length, np.int64)
            for place, word in zip(range(self.max_document_length), words, strict=False):
                row[place] = self.vocabulary_.get(word)
            yield row

    def fit_transform(self, raw_documents: Iterable[str], unused_y: Any = None) -> Iterator[npt.NDArray[np.int64]]:
        """`fit`, then `transform`."""
        documents = list(raw_documents)
        return self.fit(documents).transform(documents)

    def reverse(self, documents: Iterable[Iterable[int]]) -> Iterator[str]:
        """The words of each row, with a space between."""
        return (" ".join(self.vocabulary_.reverse(number) for number in row) for row in documents)

    def save(self, filename: str) -> None:
        """Write it to a file."""
        with GFile(filename, "wb") as file:
            pickle.dump(self, file)

    @classmethod
    def restore(cls, filename: str) -> VocabularyProcessor:
        """What `save` has written. Unpickling runs code of the file: it must be your own."""
        with GFile(filename, "rb") as file:
            found: VocabularyProcessor = pickle.load(file)
        return found


preprocessing = SimpleNamespace(CategoricalVocabulary=CategoricalVocabulary, VocabularyProcessor=VocabularyProcessor)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise absent("contrib.learn", name)


__all__ = ["ModeKeys", "preprocessing"]
