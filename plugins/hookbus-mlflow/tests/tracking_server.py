"""Tracking server: the REST API of MLflow in front of the real store, which can fail, stop and start again."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from mlflow.entities import Metric, Param, RunStatus, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2, service_pb2
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.proto_json_utils import message_to_json, parse_dict


class TrackingServer:
    """Server on a port that remains the same after `stop` and `start`.

    Attributes:
        status: Function of the path and the parsed request that returns the HTTP status.
        paths: Paths of all requests, without the prefix.
    """

    def __init__(self, database, artifacts):
        self._store = SqlAlchemyStore(f"sqlite:///{database}", artifacts.as_uri())
        self.status = lambda path, request: 200
        self.paths, self._port, self._server = [], 0, None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._port}"

    def start(self):
        handler = type("Handler", (Handler,), {"tracking": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self):
        self.stop()
        self._store.engine.dispose()

    def answer(self, path, request):
        name = path.removeprefix("/api/2.0/mlflow/")
        self.paths.append(name)
        status = self.status(name, request)
        if status != 200:
            return status, json.dumps({"error_code": "BAD_REQUEST" if status == 400 else "INTERNAL_ERROR"})
        try:
            return 200, self._call(name, request)
        except MlflowException as error:
            return error.get_http_status_code(), error.serialize_as_json()

    def _call(self, name, request):
        store = self._store
        if name == "experiments/get-by-name":
            experiment = store.get_experiment_by_name(request["experiment_name"])
            if experiment is None:
                raise MlflowException("no such experiment", error_code=databricks_pb2.RESOURCE_DOES_NOT_EXIST)
            return message_to_json(service_pb2.GetExperimentByName.Response(experiment=experiment.to_proto()))
        if name == "experiments/create":
            number = store.create_experiment(request["name"], request.get("artifact_location"))
            return message_to_json(service_pb2.CreateExperiment.Response(experiment_id=number))
        if name == "runs/search":
            runs = store.search_runs(request["experiment_ids"], request["filter"], ViewType.ACTIVE_ONLY)
            return message_to_json(service_pb2.SearchRuns.Response(runs=[run.to_proto() for run in runs]))
        if name == "runs/create":
            tags = [RunTag(tag["key"], tag["value"]) for tag in request["tags"]]
            run = store.create_run(request["experiment_id"], "me", request["start_time"], tags, request.get("run_name"))
            return message_to_json(service_pb2.CreateRun.Response(run=run.to_proto()))
        if name == "runs/get":
            return message_to_json(service_pb2.GetRun.Response(run=store.get_run(request["run_id"]).to_proto()))
        if name == "runs/update":
            status = RunStatus.from_string(request["status"])
            info = store.update_run_info(request["run_id"], status, request.get("end_time"), request.get("run_name"))
            return message_to_json(service_pb2.UpdateRun.Response(run_info=info.to_proto()))
        if name == "runs/log-batch":
            batch = service_pb2.LogBatch()
            parse_dict(request, batch)
            metrics, params = map(Metric.from_proto, batch.metrics), map(Param.from_proto, batch.params)
            store.log_batch(batch.run_id, list(metrics), list(params), [])
            return "{}"
        if name == "metrics/get-history":
            history = store.get_metric_history(request["run_id"], request["metric_key"])
            return message_to_json(
                service_pb2.GetMetricHistory.Response(metrics=[metric.to_proto() for metric in history])
            )
        raise MlflowException(f"no such endpoint: {name}", error_code=databricks_pb2.ENDPOINT_NOT_FOUND)


class Handler(BaseHTTPRequestHandler):
    tracking = None

    def do_POST(self):
        self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self):
        self._reply(dict(parse_qsl(urlsplit(self.path).query)))

    def _reply(self, request):
        status, text = self.tracking.answer(urlsplit(self.path).path, request)
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Print nothing."""
