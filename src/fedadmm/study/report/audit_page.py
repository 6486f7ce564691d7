"""One HTML page about an audit: what every setting gave away, originals beside reconstructions."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from io import BytesIO

from torch import Tensor

from fedadmm.study import formatting
from fedadmm.study.auditing.attacks import Exposed
from fedadmm.study.auditing.audit import OBSERVERS, Audit, Outcome
from fedadmm.study.formatting import Table
from fedadmm.study.report.page import paragraph, plain_page, table_html

SHOWN = 8
"""This many rows of a setting are shown."""


def audit_page(found: Audit) -> str:
    """The whole page as text."""
    run, model = found.run, found.model
    title = f"What a curious server sees: {run.label} on {run.name('problem')}"
    rows = len(found.outcomes[0].rows)
    lead = (
        f"Client {found.client}, the upload of round {found.round}, {rows} rows unless it says "
        f"otherwise, {model.flat.num_parameters:,} parameters. The server follows the protocol, "
        "knows the model, the client's settings and all its earlier uploads, and tries to get the "
        "rows back."
    )
    missing = [paragraph(f"Not run: {title}. {why}") for title, why in found.left_out.items()]
    shown = [_pictures(one, model) for one in found.outcomes]
    parts = [paragraph(lead), table_html(table(found)), paragraph(table(found).note), *missing]
    heading = '<h2>Originals above, reconstructions below</h2><div class="settings">'
    return plain_page(title, [*parts, heading, *shown, "</div>"])


def table(found: Audit) -> Table:
    """What every setting gave away, as text."""
    headings = ["upload", "seen by", "steps", "labels", "recovered", "PSNR", "SSIM", "attack"]
    blind = sorted(one.psnr for one in found.blind)[len(found.blind) // 2]
    note = (
        "Recovered are rows with a PSNR of at least 20 dB. PSNR is the median over the rows, SSIM "
        f"the mean. The mean row of other clients, without any upload, has {blind:.1f} dB. Noise "
        "is added to the sum, by the server: it hides a client from those who see the sum, and not "
        "from the server. DP-SGD adds it in the client's own steps, with clips of 1 a row."
    )
    return Table("What is recovered", headings, [_line(one) for one in found.outcomes], note)


def _line(one: Outcome) -> list[str]:
    best = one.best
    return [
        one.setting.title,
        OBSERVERS[one.setting.in_sum],
        str(one.steps),
        formatting.NOTHING if one.labels is None else f"{one.labels:.0%}",
        f"{best.recovered} of {one.setting.rows}",
        f"{best.psnr:.1f}",
        formatting.NOTHING if best.ssim is None else f"{best.ssim:.2f}",
        best.attack,
    ]


def _pictures(one: Outcome, model: Exposed) -> str:
    """One setting: its rows, and what became of them."""
    best = one.best
    pairs = "".join(
        f'<span class="pair">{_image(row, model, f"row {place}")}'
        f"{_image(made, model, f'reconstruction of row {place}')}{score.psnr:.1f} dB</span>"
        for place, (row, made, score) in enumerate(
            zip(one.rows[:SHOWN], best.found[:SHOWN], best.each, strict=False)
        )
    )
    kind = "setting" if model.is_picture else "setting strips"
    result = f"{best.attack}, {best.recovered} of {one.setting.rows} recovered"
    return (
        f'<div class="{kind}"><h3>{escape(one.setting.title)}</h3>{paragraph(result)}{pairs}</div>'
    )


def _image(row: Tensor, model: Exposed, name: str) -> str:
    """A row as a small picture; one that is none becomes a strip of its values."""
    from matplotlib.image import imsave

    file = BytesIO()
    shades = (row.double() - model.low) / (model.high - model.low)
    shades = shades.clamp(0, 1).movedim(0, -1) if model.is_picture else shades.reshape(1, -1)
    array = shades.numpy()
    if array.ndim == 3 and array.shape[-1] != 3:
        array = array.mean(-1)
    imsave(file, array, cmap="gray", vmin=0, vmax=1, format="png")
    code = b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="{escape(name)}" src="data:image/png;base64,{code}">'
