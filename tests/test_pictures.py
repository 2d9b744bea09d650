"""Figures: every one carries its text, and the same figure gives the same bytes."""

import html
import re
import sys

import pytest

from tilekit import kernels, pictures, spellings

pytest.importorskip("matplotlib", reason="matplotlib comes with the extra 'notebooks'")


def test_bars_and_roofline_say_in_words_what_they_show():
    bars = pictures.bars({"torch": 100.0, "Triton": 2000.0}, "GB/s", roof=("copy", 2500.0), title="vadd")
    assert "Triton 2,000 GB/s" in bars.alt and "2,500" in bars.alt
    roof = pictures.roofline({"matmul": (1000.0, 600.0)}, bandwidth=4000.0, peak=900.0, title="H200")
    assert "600.0 TFLOP/s" in roof.alt
    data, metadata = roof._repr_mimebundle_()
    assert data["image/png"][:8] == b"\x89PNG\r\n\x1a\n"
    assert metadata["image/png"]["alt"] == roof.alt


def test_the_small_transformer_names_each_kernel_and_its_share():
    shares = dict(zip(kernels.NAMES, (0.05, 0.1, 0.15, 0.5, 0.2)))
    picture = pictures.gpt(shares)
    assert "matmul 50.0%, flash_attention 20.0%, softmax 15.0%, fused_gelu 10.0%, vadd 5.0%" in picture.alt
    assert pictures.gpt(shares).png == picture.png


def test_the_same_figure_gives_the_same_bytes():
    first, second = (pictures.bars({"a": 1.0}, "ms") for _ in range(2))
    assert first.png == second.png


def test_a_picture_without_words_is_refused():
    with pytest.raises(ValueError, match="alt must say in words"):
        pictures.show(pictures.canvas()[0], " ")


def test_sources_are_the_files_own():
    text = spellings.source("vadd", "triton")
    assert text.startswith("@triton.jit\ndef vadd_kernel(")
    assert spellings.source("vadd", "cutile").startswith("@ct.kernel\ndef vadd_kernel(")
    both = spellings.side_by_side("vadd", "cutile", "triton")
    assert "cuTile" in both._repr_html_() and "vadd_kernel" in repr(both)


@pytest.mark.parametrize("kernel", kernels.NAMES)
def test_a_page_shows_each_line_of_a_source_whole(kernel):
    shown = spellings.side_by_side(kernel, "cutile", "triton")
    lines = re.findall(r"<div style=\"padding-left[^>]*>(.*?)</div>", shown._repr_html_())
    text = [html.unescape(re.sub("<[^>]*>", "", line)).replace("\xa0", "") for line in lines]
    sources = [source.replace("  # fmt: skip", "") for _, source in shown.columns]
    assert text == [line for source in sources for line in source.splitlines()]
    assert "overflow-x" not in shown._repr_html_() and shown._repr_html_().count("pre-wrap") == len(lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "triton"), "unknown kernel 'add'"),
        (("vadd", "jax"), "unknown backend 'jax'; wanted one of 'cutile'"),
        (("vadd", "triton", "nothing"), "no function 'nothing'; it has vadd_kernel"),
    ],
)
def test_unknown_sources_list_what_there_is(arguments, words):
    with pytest.raises(ValueError, match=words):
        spellings.source(*arguments)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pictures need matplotlib.*pip install matplotlib"):
        pictures.bars({"a": 1.0}, "ms")


def test_accesses_show_who_touches_what():
    import numpy as np

    from tilekit import cutile_interpreter
    from tilekit.cutile_interpreter import sanitizer

    cutile_interpreter.install_standin()
    import cuda.tile as ct

    @ct.kernel
    def overlapping(x, out):
        tile = ct.load(x, ct.bid(0), 4)
        ct.scatter(out, ct.bid(0) * 3 + ct.arange(4, dtype=ct.int32), tile)

    x, out = np.ones(8, np.float32), np.zeros(9, np.float32)
    accesses = sanitizer.trace((2,), overlapping, (x, out))
    stores = pictures.accesses(accesses, "out", out.shape)
    assert "9 elements of out" in stores.alt and "writes it, of 2" in stores.alt
    assert "1 shared by several blocks, the first at [3]" in stores.alt
    assert "2 with no block, the first at [7]" in stores.alt
    loads = pictures.accesses(accesses, "x", x.shape, "load", title="loads")
    assert loads.alt.startswith("loads: the 8 elements of x") and "none shared" in loads.alt
    with pytest.raises(ValueError, match="one or two dimensions; got"):
        pictures.accesses(accesses, "x", (2, 2, 2))
