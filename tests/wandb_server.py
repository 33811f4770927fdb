"""A W&B server on loopback: it answers what the client asks, GraphQL and file stream, and keeps what it is told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import quote, unquote

KEY = "0123456789" * 4

_PARTS = {"stream": "/file_stream", "files": "/upload/", "artifact": "createArtifact("}


@dataclass
class Run:
    """What the server knows of a run."""

    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)  # by step: W&B keeps one row a step
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)  # bytes of each
    artifacts: dict[str, str] = field(default_factory=dict)  # types by digest
    exit_code: int | None = None


class Server:
    """What arrived, and how it answers: ``fault`` is "" (well), "500", "401", "hang", or one of a part alone.

    "stream" refuses the curves and summaries, "files" tables and figures, "artifact" artifacts.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.fault = ""
        self.refused = 0  # requests that met the fault
        self.released = Event()  # ends what hangs
        self.seen: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                status, out = server.answer(self.path, body)
                content = json.dumps(out).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = answer  # noqa: N815

        self._http = _Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def mend(self) -> None:
        """Answer well again, also what hangs."""
        self.fault = ""
        self.released.set()

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and JSON for a request."""
        if self.fault in _PARTS:
            if _PARTS[self.fault] in path + (body.decode() if path == "/graphql" else ""):
                self.refused += 1
                return 403, {"errors": [{"message": "made up"}]}
        elif self.fault:
            self.refused += 1
            if self.fault == "hang":
                self.released.wait()
            status, why = (401, "user is not logged in") if self.fault == "401" else (500, "made up")
            return status, {"errors": [{"message": why}]}
        if path == "/graphql":
            asked = json.loads(body)
            self.seen.append(asked["query"])
            return 200, {"data": self._graphql(asked["query"], asked.get("variables") or {})}
        if path.endswith("/file_stream"):
            self._stream(self.runs[path.split("/")[-2]], json.loads(body))
        if path.startswith("/upload/"):
            _, _, run, name = path.split("/", 3)
            self.runs[run].files[unquote(name)] = len(body)
        return 200, {}

    def _graphql(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in query:
            return {"upsertBucket": self.upsert(given)}
        if "RunResumeStatus" in query:
            known = given["name"] in self.runs
            return {"model": {**_PROJECT, "bucket": self._bucket(given["name"]) if known else None}}
        if "createRunFiles" in query:
            at = f"{self.url}/upload/{given['run']}"
            files = [{"name": name, "uploadUrl": f"{at}/{quote(name)}"} for name in given["files"]]
            return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}
        if "createArtifact(" in query:
            told = given.get("input", given)
            self.runs[told["runName"]].artifacts[told["digest"]] = told["artifactTypeName"]
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"id": "s", "latestArtifact": None}}
            return {"createArtifact": {"artifact": artifact}}
        if "query Run(" in query:
            return {"project": {"run": self._state(given["name"]) if given["name"] in self.runs else None}}
        if "query RunFiles(" in query:
            nodes = [
                {"id": name, "name": name, "sizeBytes": size} for name, size in self.runs[given["name"]].files.items()
            ]
            return {"project": {"internalId": "1", "run": {"fileCount": len(nodes), "files": _page(nodes)}}}
        if "outputArtifacts(" in query:
            nodes = [_artifact(*one) for one in self.runs[given["run"]].artifacts.items()]
            return {"project": {"run": {"artifacts": {"totalCount": len(nodes), **_page(nodes)}}}}
        if "viewer" in query:
            viewer = {"id": "u", "entity": "me", "username": "me", "name": "me", "flags": "{}", "teams": {"edges": []}}
            return {"viewer": viewer | dict.fromkeys(("email", "admin", "deletedAt", "apiKeys"))}
        return {"project": None}

    def upsert(self, given: dict[str, Any]) -> dict[str, Any]:
        inserted = given["name"] not in self.runs
        run = self.runs.setdefault(given["name"], Run())
        run.name, run.group = given["displayName"] or run.name, given["groupName"] or run.group
        run.job_type, run.tags = given["jobType"] or run.job_type, given["tags"] or run.tags
        config = json.loads(given["config"] or "{}")
        run.exit_code = None
        run.config |= {name: item["value"] for name, item in config.items() if name != "_wandb"}
        return {"bucket": self._bucket(given["name"]), "inserted": inserted}

    def _bucket(self, name: str) -> dict[str, Any]:
        run = self.runs[name]
        config = {key: {"value": value} for key, value in run.config.items()}
        lines = [json.dumps(run.history[step]) for step in sorted(run.history)]
        counts = {"historyLineCount": len(lines), "eventsLineCount": 0, "logLineCount": 0}
        tails = {"historyTail": json.dumps(lines[-1:]), "eventsTail": "[]", "summaryMetrics": json.dumps(run.summary)}
        about = {"id": name, "name": name, "displayName": run.name, "description": "", "sweepName": None}
        about |= {"tags": run.tags, "notes": "", "wandbConfig": '{"t": 1}'}  # without it W&B takes no run as begun
        return {**about, **counts, **tails, "config": json.dumps(config), "project": _PROJECT}

    def _state(self, name: str) -> dict[str, Any]:
        run = self.runs[name]
        state = "running" if run.exit_code is None else "failed" if run.exit_code else "finished"
        fields = {"projectId": "1", "state": state, "group": run.group, "jobType": run.job_type, "commit": None}
        fields |= {"readOnly": False, "createdAt": "2026-01-01T00:00:00Z", "heartbeatAt": "2026-01-01T00:00:00Z"}
        fields |= {"systemMetrics": "{}", "historyKeys": None, "user": {"name": "me", "username": "me"}}
        return {**self._bucket(name), **fields}

    def _stream(self, run: Run, told: dict[str, Any]) -> None:
        files = told.get("files") or {}
        for text in files.get("wandb-history.jsonl", {"content": []})["content"]:
            row = json.loads(text)
            run.history[row["_step"]] = row
        for text in files.get("wandb-summary.json", {"content": []})["content"]:
            run.summary = json.loads(text)
        if told.get("complete"):
            run.exit_code = told.get("exitcode")


class _Http(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hung up is no fault of a test


def _page(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    edges = [{"node": node, "cursor": str(place)} for place, node in enumerate(nodes)]
    return {"pageInfo": {"endCursor": None, "hasNextPage": False}, "edges": edges}


def _artifact(digest: str, kind: str) -> dict[str, Any]:
    """As the server tells of one; its name and version are of no account here."""
    project = {"id": "p", "internalId": "1", "name": "mine", "entity": {"name": "me"}}
    about = {"id": digest, "artifactSequence": {"name": kind, "project": project}, "versionIndex": 0}
    about |= {"artifactType": {"name": kind}, "state": "COMMITTED", "digest": digest, "size": 1, "fileCount": 1}
    about |= {"ttlDurationSeconds": 0, "ttlIsInherited": False, "tags": [], "createdAt": "2026-01-01T00:00:00Z"}
    return about | dict.fromkeys(("description", "metadata", "historyStep", "commitHash", "updatedAt"))


_PROJECT: dict[str, Any] = {"id": "p", "name": "mine", "entity": {"id": "e", "name": "me"}}


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()
