import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.testing import fake_training
from hookbus_profiler.config import ProfilerConfig
from hookbus_profiler.output import ProfilerOutput
from hookbus_profiler.profiling_window import Cycle
from hookbus_profiler.report import Report
from hookbus_profiler.time_breakdown import Times


def record_cycle():
    cycle = Cycle(0, 1)
    torch.ones(2, 2) @ torch.ones(2, 2)
    cycle.profile.step()
    cycle.stop()
    return cycle


@pytest.fixture
def report():
    times = Times(iterations=1)
    times.parts["forward"] = 1.0
    return Report(times)


class UseOutput(Hook):
    """Create the output of a run and pass it to a function after training."""

    def __init__(self, use, **settings):
        super().__init__()
        self.use, self.settings = use, settings

    def before_train(self, run):
        self.output = ProfilerOutput(run, ProfilerConfig(**self.settings), "profiler")

    def after_train(self):
        self.use(self.output)


def use_output(use, work_dir=None, **settings):
    fake_training(bus=HookBus([UseOutput(use, **settings)]), epochs=1, batches=2, work_dir=work_dir)


def list_files(work_dir):
    return sorted(path.name for path in (work_dir / "profiler").iterdir())


@pytest.mark.parametrize(
    ("settings", "traces"),
    [
        ({}, ["rank0-cycle7-iteration2.pt.trace.json.gz"]),
        ({"export_tensorboard": False}, ["rank0-cycle7-iteration2.json.gz"]),
        ({"export_tensorboard": False, "export_chrome_trace": False}, []),
    ],
)
def test_trace_is_written_as_configured_and_the_operators_always(tmp_path, settings, traces):
    use_output(lambda output: output.write_cycle(record_cycle(), 7), tmp_path, **settings)
    assert list_files(tmp_path) == sorted([*traces, "rank0-cycle7-iteration2.operators.txt"])


def test_operators_are_logged_without_a_work_dir(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", "hookbus")
    use_output(lambda output: output.write_cycle(record_cycle(), 1))
    assert "profiler: the most expensive operators" in caplog.text
    assert "aten::mm" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_handler_receives_the_profiler_after_the_trace_is_written(tmp_path):
    calls = []
    use_output(
        lambda output: output.write_cycle(record_cycle(), 1),
        tmp_path,
        on_trace_ready=lambda profile: calls.append((len(list_files(tmp_path)), profile.key_averages()[0].count)),
    )
    assert calls == [(2, 1)]


def test_report_is_written_to_a_file(tmp_path, report):
    use_output(lambda output: output.write_report(report), tmp_path)
    assert (tmp_path / "profiler/report.txt").read_text() == report.to_text()


def test_report_of_a_continued_run_has_a_new_name(tmp_path, report):
    use_output(lambda output: [output.write_report(report) for _ in range(3)], tmp_path)
    assert sorted(path.name for path in (tmp_path / "profiler").glob("report*")) == [
        "report-2.txt",
        "report-3.txt",
        "report.txt",
    ]


def test_report_is_printed(capsys, report):
    use_output(lambda output: output.print_report(report))
    assert "The model itself takes 100.0 % of the time" in capsys.readouterr().out


def test_output_directory_is_printed(tmp_path, capsys, report):
    use_output(lambda output: output.print_report(report), tmp_path)
    assert capsys.readouterr().out.endswith(f"\nProfiler output: {tmp_path / 'profiler'}\n")


@pytest.mark.parametrize(
    "use", [lambda output, report: output.write_report(report), lambda output, report: output.print_report(report)]
)
def test_report_is_written_and_printed_only_on_the_main_process(tmp_path, report, capsys, monkeypatch, use):
    monkeypatch.setattr("hookbus_profiler.output.is_main", lambda: False)
    use_output(lambda output: use(output, report), tmp_path)
    assert not (tmp_path / "profiler").exists()
    assert capsys.readouterr().out == ""
