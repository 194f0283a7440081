"""All sizes at which a model changes what it does.

Beside samples and classes, D is the number of random features (5,000 by default), or for LDA that
of the features.

| constant | counts | up to it | beyond |
|---|---|---|---|
| `EXACT_KERNEL_ROWS` | samples | exact kernel; all left out | D features; new ones left out |
| `EXACT_KERNEL_SIZE` | samples and names | exact kernel | D features |
| `most_rows` (D) | samples | they are kept | dropped, if not all are to be kept |
| `MOST_PENDING` | samples not left out yet | all of them wait | a choice of them waits |
| `MOST_EVIDENCE` | samples left out | all of them count | the latest count |
| `ENOUGH_FOR_A_CLASS` | the same of a class | no threshold of its own | from this number on, one |
| `MOST_COMPARED` | classes | regression beside LDA, means of rare ones improved | LDA alone |
| `MOST_NAMED` | classes | all names count | names count for classes without samples |
| `BLOCK` | random features | all judge the ridge | so many judge it |
| `ALWAYS_JUDGED` | features that judge | the ridge is judged each time | when it may have changed |
| `EXACT_TRACE` | features | the trace of the inverse is exact | it is estimated |
| `most_changes` (D) | samples since | the factor is updated | the scatter is factorised again |

What users see of this is told in docs/method.md, "What changes with size".
"""

from __future__ import annotations

# Within the training rows of fifteen sets, the exact kernel gains 0.6 points from 513 to 768
# samples, and 0.2 from 769 to 1,300; solving takes the cube of their number, at 768 two to three
# times as long as an update of the random features' statistics.
EXACT_KERNEL_ROWS = 768
EXACT_KERNEL_SIZE = 1024
MOST_PENDING = 1024
MOST_EVIDENCE = 2048
ENOUGH_FOR_A_CLASS = 30
MOST_COMPARED = 1024
MOST_NAMED = 2048
BLOCK = 1000
ALWAYS_JUDGED = 256  # with so many, judging takes a few milliseconds
EXACT_TRACE = 128


def most_rows(n_components: int) -> int:
    """Return up to how many samples a model keeps them."""
    return n_components // 2


def most_changes(n_components: int) -> int:
    """Return up to how many rows of change a scatter keeps beside its matrix."""
    return n_components // 8
