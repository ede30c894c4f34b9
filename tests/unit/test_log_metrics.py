"""Metrics in the lines that training loops and libraries print.

The lines of libraries have the forms of Keras 2 and 3 (keras/src/utils/progbar.py), tqdm 4
(`format_meter`), Hugging Face's `ProgressCallback`, which prints a dictionary, since transformers 5
with quoted numbers, and Lightning (pytorch-lightning#4225, #3866).
"""

from __future__ import annotations

import pytest

from tpuctl.model.logs.curves import Curves
from tpuctl.model.logs.log_metrics import MetricReader
from tpuctl.model.logs.progress import Progress, progress_of

ESC = "\x1b["


def points(log: str, name: str = "loss") -> list[tuple[float, float]]:
    curves = Curves()
    curves.feed(log.encode())
    curves.end()
    curve = curves.of(name)
    return [] if curve is None else curve.all_points


def keras(step: int, total: int, values: str) -> str:
    """A redrawn line of Keras 3 on a terminal."""
    return (
        "\b" * 70 + f"\r{ESC}1m{step:3}/{total}{ESC}0m {ESC}32m━━━━━━{ESC}0m{ESC}37m━━━{ESC}0m "
        f"{ESC}1m1s{ESC}0m 5ms/step - {values}"
    )


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("step 10 loss 3.58", [(10, 3.58)]),
        ("Step: 10 | Loss: 3.58 | LR: 1e-3 | ETA: 0:10:00", [(10, 3.58)]),
        ("[2026-11-28 10:00:00] INFO train.py:31: step=10, loss=3.58", [(10, 3.58)]),
        ("loss=0.5 at step 3\nloss=0.4 at step 6", [(3, 0.5), (6, 0.4)]),
        ("loss: 0.42\nloss: 0.40\n", [(1, 0.42), (2, 0.40)]),
        ("INFO:root:loss: 0.42\n", [(1, 0.42)]),
        ("INFO:tensorflow:loss = 2.3011, step = 100 (1.2 sec)", [(100, 2.3011)]),
        ("iter 100: loss 3.2345, time 250.12ms, mfu 5.10%", [(100, 3.2345)]),
        ("step    1/74 | loss 4.367857 (+nanz)| norm 15.4 (+nanz)| lr 3.00e-04", [(1, 4.367857)]),
        ("Train Epoch: 1 [30000/60000 (50%)]\tLoss: 1.762400", [(0.5, 1.7624)]),
        ("Epoch [1/5], Step [100/600], Loss: 0.4\nEpoch [2/5], Step [100/600], Loss: 0.3",
         [(100, 0.4), (700, 0.3)]),
        ("epoch 3 loss 0.5 acc 0.9", [(3, 0.5)]),
        ("step 10/100 loss 1e-3", [(10, 0.001)]),
        (" 10/100 [==>...........] - ETA: 5s - loss: 0.5000 - accuracy: 0.5", [(10, 0.5)]),
        ("100/100 - 5s - 50ms/step - accuracy: 0.5 - loss: 0.40 - val_loss: 4.2e-04", [(100, 0.4)]),
        ("     12/Unknown 1s 5ms/step - loss: 0.5000", [(1, 0.5)]),
        (" 45%|███  | 45/100 [00:10<00:12,  4.47it/s, lr=0.1, loss=0.5]", [(45, 0.5)]),
        ("Epoch 0:  97% 1651/1702 [13:00<00:24,  2.11it/s, loss=0.158, v_num=0, train_loss=0.149]",
         [(1651, 0.158)]),
        ("{'loss': 0.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 1.5}", [(1.5, 0.3)]),
        ("{'loss': '0.3', 'grad_norm': '1.2', 'learning_rate': '5e-05', 'epoch': '1.5'}",
         [(1.5, 0.3)]),
        ("step 20/500  loss 7.3042  mlm accuracy 0.0791  41,230 tokens/s", [(20, 7.3042)]),
        ('{"step": 4, "loss": 3}\n{"step": 5, "loss": 2}', [(4, 3), (5, 2)]),
        ('{"loss": 3.5, "epoch": 2}', [(2, 3.5)]),
    ],
)  # fmt: skip
def test_loss_is_read(log: str, expected: list[tuple[float, float]]) -> None:
    assert points(log) == expected


@pytest.mark.parametrize(
    "line",
    [
        "no loss of data in step 3",
        "step 3: no loss",
        "step 3: packet loss 5%",
        "step 3: packet loss: 5",
        "step 3: loss 5 %",
        "weight loss: 3 kg",
        "The loss: 3 of 4 machines",
        "Using loss 2 in step 3 of the recipe",
        "compiled with loss=mse in step 1",
        "step 10/100 lr 0.001 eta 10s 45%",
        "lm loss scale: 1.0 | step 3",
        "step 3 loss_weight 0.5",
        "Downloading ━━━━━━━━ 10/20 lossless.whl 3.1 MB/s eta 0:00:05",
        "lossless 3 step 4",
        "step 1.5 loss is high",
        "{'loss': 'high', 'epoch': 1.0}",
        "{'lossy': 3, 'epoch': 1.0}",
        '{"step": 1e300}',
    ],
)
def test_other_text_is_no_metric(line: str) -> None:
    curves = Curves()
    curves.feed(f"{line}\n".encode())
    assert curves.nonempty() == ()
    assert progress_of(line.encode()) == Progress()


def test_keras_counts_steps_over_epochs_and_skips_evaluation() -> None:
    log = (
        "Epoch 1/2\n" + keras(1, 100, "accuracy: 0.1000 - loss: 2.3000")
        + keras(100, 100, "accuracy: 0.4000 - loss: 1.2000 - val_loss: 1.1000") + "\n"
        "Epoch 2/2\n" + keras(50, 100, "accuracy: 0.5000 - loss: 1.0000")
        + keras(100, 100, "accuracy: 0.6000 - loss: 0.9000 - val_loss: 1.0000") + "\n"
        + keras(10, 40, "accuracy: 0.6000 - loss: 7.0000") + keras(40, 40, "loss: 7.0000") + "\n"
    )  # fmt: skip
    assert points(log) == [(1, 2.3), (100, 1.2), (150, 1.0), (200, 0.9)]
    assert points(log, "val_loss") == [(100, 1.1), (200, 1.0)]
    assert progress_of(log.encode()) == Progress(200, 0.9)
    end = log[log.index("Epoch 2/2") + 10 :]  # of an unknown epoch
    assert progress_of(end.encode()).step is None


def test_steps_next_to_epochs_may_begin_again_in_each() -> None:
    log = "Epoch {}, step {}/600, loss {}\n"
    each = "".join(log.format(*row) for row in ((1, 300, 4), (1, 600, 3), (2, 300, 2), (3, 1, 1)))
    assert points(each) == [(300, 4), (600, 3), (900, 2), (1201, 1)]
    over_all = "".join(log.format(*row) for row in ((1, 100, 4), (2, 300, 3), (3, 500, 2)))
    assert points(over_all) == [(100, 4), (300, 3), (500, 2)]
    without_total = "epoch 1 iter 10 loss 4\nepoch 2 iter 1 loss 3\nepoch 3 iter 1 loss 2\n"
    assert points(without_total) == [(10, 4), (11, 3), (12, 2)]
    end = progress_of(log.format(3, 300, 2.5).encode())  # of a log whose beginning is unknown
    assert end == Progress(None, 2.5, None, 3.0)


def test_next_attempt_resumes_the_steps() -> None:
    curves = Curves()
    for step in (1, 2, 3):
        curves.feed(f"Epoch {step}/9\n10/10 - 1s - loss: {9 - step}\n".encode())
    curves.end()
    curves.feed(b"Epoch 3/9\n10/10 - 1s - loss: 5\nEpoch 4/9\n10/10 - 1s - loss: 4\n")
    curve = curves.of("loss")
    assert curve is not None and curve.all_points == [(10, 8), (20, 7), (30, 5), (40, 4)]


def test_lightning_and_bars_continue_the_steps() -> None:
    log = "\r".join(
        f"Epoch {epoch}:  22%|██▏       | {step}/18 [00:17<01:02,  4.47s/it, loss={loss}, v_num=1]"
        for epoch, step, loss in ((0, 4, 10.0), (0, 18, 9.0), (1, 4, 8.0))
    )
    assert points(log) == [(4, 10.0), (18, 9.0), (22, 8.0)]
    bar = " 50%|█████| {}/10 [00:01<00:01,  9.9it/s, loss={}]\r"
    log = "".join(bar.format(step, loss) for step, loss in ((5, 4.0), (10, 3.0), (5, 2.0)))
    assert points(log) == [(5, 4.0), (10, 3.0), (15, 2.0)]
    log = "".join(
        f"Epoch {epoch}/2\n8/8 - 0s - 15ms/step - loss: {loss}\n"
        for epoch, loss in ((1, 4.0), (2, 3.0), (1, 2.0), (2, 1.0))
    )
    assert points(log) == [(8, 4.0), (16, 3.0), (24, 2.0), (32, 1.0)]


def test_steps_are_preferred_to_epochs_and_lines() -> None:
    log = "loss: 9\n{'loss': 8, 'epoch': 1.0}\nstep 3 loss 7\n"
    assert points(log) == [(3, 7.0)]
    log = b"{'loss': 0.3, 'learning_rate': 5e-05, 'epoch': 1.25}\n"
    assert progress_of(log) == Progress(None, 0.3, None, 1.25)
    line = "step 7 | loss 2.5 | learning rate 1e-4 | 41,230 tokens/s | 45% | eta 0:10"
    assert points(line, "learning_rate") == [(7, 1e-4)]
    assert progress_of(line.encode()) == Progress(7, 2.5, 41230.0)


@pytest.mark.parametrize(
    "text",
    [
        *("epoch" + " " * 60_000, "loss " * 12_000, "{'" * 30_000, "{'loss': 1, " * 5_000),
        *("a_" * 30_000 + "loss", "step " * 12_000, "━" * 20_000 + "loss", "loss 1 " * 8_000),
        *(", loss=1" * 8_000, "loss 1/1 [1" + ":1" * 30_000, "{" * 30_000 + "loss" + "}" * 30_000),
        "[" * 60_000 + "loss",
    ],
    ids=lambda text: text[:6],
)
def test_hostile_lines_have_at_most_a_point(text: str) -> None:
    """A pattern that is not linear in the line's length would take minutes for these."""
    reader = MetricReader()
    assert len([*reader.feed(f"step 1 {text}\n".encode()), *reader.feed(f"{text}\n".encode())]) < 3


def test_number_of_curves_is_bounded() -> None:
    curves = Curves()
    for step in range(1000):
        curves.feed(b'{"step": %d, "loss": 1, "m%d": 2}\n' % (step, step))
    assert len(curves.nonempty()) <= 200
