"""Stands before fake-gcs-server and translates Google's XML API, which obstore speaks, into its JSON API.

fake-gcs-server 1.56.1 is right in its JSON API and has these faults in its XML API, each seen with the bare server:

* a PUT is a 400, but for that of a signed URL, which ignores `x-goog-if-generation-match` and replaces the object;
* a listing has one page, however long, and ignores `start-after`; for a missing bucket it is a 500;
* a 404 has no code, so a missing object, a missing bucket and a wrong address look alike.

Nothing is decided here: whether an object exists, who wins a race and how a listing is cut is asked of the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

import urllib3

from support.servers.serving import ANY_PORT, Quiet, serving

_PASSED = ("Range", "If-Match", "If-None-Match")
_RETURNED = ("Content-Range", "Content-Type", "ETag", "Last-Modified", "X-Goog-Generation")


class _Front(Quiet, BaseHTTPRequestHandler):
    behind: str
    http: urllib3.PoolManager

    def do_GET(self) -> None:
        bucket, name, query = self._asked()
        if not name:
            self._list(bucket, query)
            return
        url = f"{self.behind}/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media"
        passed = {header: self.headers[header] for header in _PASSED if self.headers[header]}
        found = self._ask(self.command, url, headers=passed)
        if found.status == 404:
            self._refuse(404, self._missing(bucket))
            return
        headers = {header: found.headers[header] for header in _RETURNED if header in found.headers}
        if self.command == "HEAD":
            self.send_response(found.status)
            for header, value in (headers | {"Content-Length": found.headers["Content-Length"]}).items():
                self.send_header(header, value)
            self.end_headers()
        else:
            self.answer(found.status, found.data, headers=headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        bucket, name, _ = self._asked()
        body = self.rfile.read(length := int(self.headers["Content-Length"]))
        if len(body) < length:  # its client is gone; half an object is none
            self.close_connection = True
            return
        wanted = {"uploadType": "media", "name": name}
        if (match := self.headers["x-goog-if-generation-match"]) is not None:
            wanted["ifGenerationMatch"] = match
        put = self._ask("POST", f"{self.behind}/upload/storage/v1/b/{bucket}/o?{urlencode(wanted)}", body=body)
        if put.status == 200:
            made = put.json()
            self.answer(200, headers={"ETag": f'"{made["etag"]}"', "x-goog-generation": str(made["generation"])})
        else:
            self._refuse(put.status, self._missing(bucket) if put.status == 404 else "PreconditionFailed")

    def do_DELETE(self) -> None:
        bucket, name, _ = self._asked()
        gone = self._ask("DELETE", f"{self.behind}/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
        if gone.status == 404:
            self._refuse(404, self._missing(bucket))
        else:
            self.answer(204)

    def _list(self, bucket: str, query: Mapping[str, str]) -> None:
        after = query.get("start-after", "")
        names = {
            "prefix": "prefix",
            "delimiter": "delimiter",
            "max-keys": "maxResults",
            "continuation-token": "pageToken",
        }
        wanted = {theirs: query[ours] for ours, theirs in names.items() if ours in query}
        # Their offset is inclusive, and the caller leaves out the first itself.
        url = (
            f"{self.behind}/storage/v1/b/{bucket}/o?{urlencode({'maxResults': '1000', 'startOffset': after} | wanted)}"
        )
        found = self._ask("GET", url)
        if found.status == 404:
            self._refuse(404, "NoSuchBucket")
            return
        page = found.json()
        objects = [item for item in page.get("items", ()) if not after or item["name"] > after]
        contents = "".join(
            f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size>"
            f"<LastModified>{item['updated']}</LastModified><ETag>&quot;{item['etag']}&quot;</ETag></Contents>"
            for item in objects
        )
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in page.get("prefixes", ())
        )
        following = page.get("nextPageToken", "")
        token = f"<NextContinuationToken>{escape(following)}</NextContinuationToken>" if following else ""
        body = f"<ListBucketResult>{contents}{folders}{token}</ListBucketResult>"
        self.answer(200, body.encode(), headers={"Content-Type": "application/xml"})

    def _missing(self, bucket: str) -> str:
        there = self._ask("GET", f"{self.behind}/storage/v1/b/{bucket}").status == 200
        return "NoSuchKey" if there else "NoSuchBucket"

    def _refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>as fake-gcs-server answered</Message></Error>".encode()
        if self.command == "HEAD":
            body = b""
        self.answer(status, body, headers={"Content-Type": "application/xml"})

    def _asked(self) -> tuple[str, str, dict[str, str]]:
        url = urlsplit(self.path)
        bucket, _, name = url.path.removeprefix("/").partition("/")
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        return bucket, unquote(name), query

    def _ask(self, method: str, url: str, *, body: bytes | None = None, headers: Any = None) -> Any:
        return self.http.request(method, url, body=body, headers=headers, retries=False, timeout=30.0)


@contextmanager
def gcs_front(behind: str) -> Iterator[str]:
    """Serve before a fake-gcs-server at a URL; the value is the URL for the store."""
    with urllib3.PoolManager(maxsize=32, block=True) as http:
        handler = type("Front", (_Front,), {"behind": behind, "http": http})
        with serving(ThreadingHTTPServer(ANY_PORT, handler)) as url:
            yield url
