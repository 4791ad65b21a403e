import math
import sys

from PIL import Image

from hookbus_system_monitor.plots import group_by_unit, plot_error, save_plots

VALUES = {
    "system/cpu_percent": [None, 40, 50],
    "system/gpu0/watts": [200, None, 210],
    "system/gpu0/percent": [1, 2, 3],
    "system/net_sent_mb_per_s": [0, 0, 0],
}


class TestPanels:
    def test_each_unit_has_a_panel(self):
        assert group_by_unit(list(VALUES)) == {
            "%": ["system/cpu_percent", "system/gpu0/percent"],
            "MB/s": ["system/net_sent_mb_per_s"],
            "W": ["system/gpu0/watts"],
        }

    def test_panels_contain_all_names(self):
        names = ["cpu_percent", "memory_used_gb", "net_sent_mb_per_s", "celsius", "watts", "sm_mhz", "joules"]

        assert sorted(name for members in group_by_unit(names).values() for name in members) == sorted(names)


class TestFigure:
    def test_figure_is_a_png_with_a_height_proportional_to_the_panels(self, tmp_path):
        save_plots(tmp_path / "all.png", [0, 2, 4], VALUES)
        save_plots(tmp_path / "one.png", [0, 2, 4], {"system/cpu_percent": [1, 2, 3]})

        with Image.open(tmp_path / "all.png") as all_, Image.open(tmp_path / "one.png") as one:
            assert (all_.format, all_.height) == ("PNG", 3 * one.height)

    def test_figure_depends_on_the_values(self, tmp_path):
        for name, values in (("flat", [50, 50, 50]), ("steep", [0, 50, 100])):
            save_plots(tmp_path / f"{name}.png", [0, 1, 2], {"system/cpu_percent": values})

        assert (tmp_path / "flat.png").read_bytes() != (tmp_path / "steep.png").read_bytes()

    def test_missing_value_interrupts_the_line(self, tmp_path):
        for name, middle in (("gap", None), ("nan", math.nan), ("line", 50)):
            save_plots(tmp_path / f"{name}.png", [0, 1, 2], {"system/cpu_percent": [50, middle, 50]})

        assert (tmp_path / "gap.png").read_bytes() == (tmp_path / "nan.png").read_bytes()
        assert (tmp_path / "gap.png").read_bytes() != (tmp_path / "line.png").read_bytes()


class TestProblems:
    def test_plot_error_is_none_with_a_directory_and_matplotlib(self, tmp_path):
        assert plot_error(tmp_path) is None

    def test_plot_error_reports_missing_matplotlib(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)

        assert plot_error(tmp_path) == (
            "show_plots: requires matplotlib, got none. Run: pip install 'hookbus-system-monitor[plots]'"
        )

    def test_plot_error_reports_a_missing_directory(self):
        assert plot_error(None) == (
            "show_plots: requires a work directory, got none. Set `work_dir`, or `show_plots: false`."
        )
