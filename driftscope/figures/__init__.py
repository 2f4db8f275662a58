"""Figures: tidy data in, a `go.Figure` out. Shared by the app and the HTML report.

Reads no file, knows no Streamlit and no run. Every figure carries its text alternative (`alt_text`), made of its own data.
"""

from driftscope.figures.bars import fusion_bars, region_bars
from driftscope.figures.curves import curve_figure
from driftscope.figures.dots import condition_dots
from driftscope.figures.head_map import head_map
from driftscope.figures.heat_map import difference_map, tokens_map
from driftscope.figures.layout import alt_text
from driftscope.figures.losses import loss_bars
from driftscope.figures.style import SeriesStyle, series_style
from driftscope.figures.tidy import Cell, Curve, Estimate, HeadMasses, Losses, Pair, Point, RegionMasses, Share

__all__ = [
    "Cell",
    "Curve",
    "Estimate",
    "HeadMasses",
    "Losses",
    "Pair",
    "Point",
    "RegionMasses",
    "SeriesStyle",
    "Share",
    "alt_text",
    "condition_dots",
    "curve_figure",
    "difference_map",
    "fusion_bars",
    "head_map",
    "loss_bars",
    "region_bars",
    "series_style",
    "tokens_map",
]
