import math
import sys

from PIL import Image

from hookbus_system_monitor.plots import panels_of, save_plots, why_no_plots

COURSE = {
    "system/cpu_percent": [None, 40, 50],
    "system/gpu0/watts": [200, None, 210],
    "system/gpu0/percent": [1, 2, 3],
    "system/net_sent_mb_per_s": [0, 0, 0],
}


class TestPanels:
    def test_are_one_for_each_unit(self):
        assert panels_of(list(COURSE)) == {
            "%": ["system/cpu_percent", "system/gpu0/percent"],
            "MB/s": ["system/net_sent_mb_per_s"],
            "W": ["system/gpu0/watts"],
        }

    def test_hold_every_name_that_is_sampled(self):
        names = ["cpu_percent", "memory_used_gb", "net_sent_mb_per_s", "celsius", "watts", "sm_mhz", "joules"]

        assert sorted(name for members in panels_of(names).values() for name in members) == sorted(names)


class TestThePicture:
    def test_is_a_png_that_is_as_high_as_it_has_panels(self, tmp_path):
        save_plots(tmp_path / "all.png", [0, 2, 4], COURSE)
        save_plots(tmp_path / "one.png", [0, 2, 4], {"system/cpu_percent": [1, 2, 3]})

        with Image.open(tmp_path / "all.png") as all_, Image.open(tmp_path / "one.png") as one:
            assert (all_.format, all_.height) == ("PNG", 3 * one.height)

    def test_shows_the_course(self, tmp_path):
        for name, values in (("flat", [50, 50, 50]), ("steep", [0, 50, 100])):
            save_plots(tmp_path / f"{name}.png", [0, 1, 2], {"system/cpu_percent": values})

        assert (tmp_path / "flat.png").read_bytes() != (tmp_path / "steep.png").read_bytes()

    def test_leaves_a_gap_where_nothing_was_known(self, tmp_path):
        for name, middle in (("gap", None), ("nan", math.nan), ("line", 50)):
            save_plots(tmp_path / f"{name}.png", [0, 1, 2], {"system/cpu_percent": [50, middle, 50]})

        assert (tmp_path / "gap.png").read_bytes() == (tmp_path / "nan.png").read_bytes()
        assert (tmp_path / "gap.png").read_bytes() != (tmp_path / "line.png").read_bytes()


class TestWhyNot:
    def test_is_nothing_where_it_can_be_drawn(self, tmp_path):
        assert why_no_plots(tmp_path) is None

    def test_is_a_package_that_is_missing(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)

        assert why_no_plots(tmp_path) == (
            "show_plots needs matplotlib: pip install 'hookbus-system-monitor[plots]'. Nothing is drawn."
        )

    def test_is_a_directory_that_is_missing(self):
        assert why_no_plots(None) == (
            "show_plots is on, and this run has no place for pictures: give it a work_dir. Nothing is drawn."
        )
