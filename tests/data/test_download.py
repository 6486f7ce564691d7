"""Where files come from: FEDADMM_DATA, the cache, a download; whole or not at all."""

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedadmm.core.errors import DataError, ParameterError
from fedadmm.data import download
from fedadmm.data.download import SOURCES, File, Source

CONTENT = bytes(range(256)) * 1500


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Server:
    """A loopback server whose misbehaviour can be chosen."""

    def __init__(self) -> None:
        self.body = CONTENT
        self.ranges = True
        self.announce = True
        self.cut_after: int | None = None
        self.status = 200
        self.requests: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.requests.append(asked)
        if self.status != 200:
            request.send_error(self.status)
            return
        begin = int(asked[6:-1]) if asked and self.ranges else 0
        part = self.body[begin:]
        request.send_response(206 if begin else 200)
        if self.announce:
            request.send_header("Content-Length", str(len(part)))
        if self.ranges:
            request.send_header("Accept-Ranges", "bytes")
        request.end_headers()
        request.wfile.write(part if self.cut_after is None else part[: self.cut_after])

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.httpd.server_port}/file.bin"

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()
        self.thread.join(5)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("FEDADMM_DATA", str(data))
    monkeypatch.setattr(download, "cache_folder", lambda: cache)
    return data, cache


def source(address: str | None = None, name: str = "file.bin", content: bytes = CONTENT) -> Source:
    file = File(name, len(content), digest(content), address=address)
    return Source("thing", "a thing", "free", (file,))


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_the_environment_comes_before_the_cache(places: tuple[Path, Path]) -> None:
    one = source()
    assert one.find("file.bin") is None
    for root in reversed(places):
        path = root / "thing/file.bin"
        path.parent.mkdir(parents=True)
        path.write_bytes(CONTENT)
        assert one.locate("file.bin") == path


def test_a_file_may_also_lie_there_packed(places: tuple[Path, Path]) -> None:
    one = source()
    path = places[0] / "thing/file.bin.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(CONTENT))
    assert one.locate("file.bin") == path
    path.write_bytes(gzip.compress(CONTENT[:-1]))
    with pytest.raises(DataError, match=r"file\.bin\.gz: is damaged"):
        one.locate("file.bin")


def test_a_packed_canonical_file_may_also_lie_there_unpacked(places: tuple[Path, Path]) -> None:
    packed = gzip.compress(CONTENT)
    file = File("file.gz", len(packed), digest(packed), unpacked=digest(CONTENT))
    one = Source("thing", "", "", (file,))
    path = places[0] / "thing/file"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert one.locate("file.gz") == path


@pytest.mark.parametrize(
    ("content", "message"),
    [(CONTENT[:-1], "has 383999 bytes"), (b"x" + CONTENT[1:], "checksum")],
)
def test_a_damaged_file_is_refused_by_name(
    places: tuple[Path, Path], content: bytes, message: str
) -> None:
    one = source()
    path = places[0] / "thing/file.bin"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        one.locate("file.bin")
    assert str(path) in str(error.value)


def test_a_folder_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDADMM_DATA", "/nowhere/at/all")
    with pytest.raises(DataError, match=r"FEDADMM_DATA is '/nowhere/at/all'"):
        download.data_folder()
    monkeypatch.delenv("FEDADMM_DATA")
    assert download.data_folder() is None


def test_a_download_lands_in_the_cache_and_nothing_else(
    server: Server, places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one = source(server.address)
    path = one.locate("file.bin", progress=True)
    assert path == places[1] / "thing/file.bin"
    assert path.read_bytes() == CONTENT
    assert listing(places[1]) == ["file.bin"]
    output = capsys.readouterr()
    assert output.out == ""
    assert "file.bin" in output.err
    assert one.locate("file.bin") == path
    assert len(server.requests) == 1


@pytest.mark.parametrize("announce", [True, False])
def test_an_interrupted_download_is_continued(
    server: Server, places: tuple[Path, Path], announce: bool
) -> None:
    one = source(server.address)
    server.cut_after, server.announce = 100_000, announce
    with pytest.raises(DataError, match=r"file\.bin: cannot be downloaded"):
        one.locate("file.bin")
    assert listing(places[1]) == [".file.bin.part"]
    assert one.find("file.bin") is None
    kept = (places[1] / "thing/.file.bin.part").stat().st_size
    assert 0 < kept <= 100_000
    server.cut_after = None
    assert one.locate("file.bin").read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={kept}-"]
    assert listing(places[1]) == ["file.bin"]


def test_nothing_stays_when_the_server_cannot_continue(
    server: Server, places: tuple[Path, Path]
) -> None:
    one = source(server.address)
    server.ranges, server.cut_after = False, 100_000
    with pytest.raises(DataError, match="cannot be downloaded"):
        one.locate("file.bin")
    assert listing(places[1]) == []


def test_a_server_that_ignores_the_range_starts_again(
    server: Server, places: tuple[Path, Path]
) -> None:
    one = source(server.address)
    part = places[1] / "thing/.file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"wrong" * 100)
    server.ranges = False
    assert one.locate("file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("body", [b"x" + CONTENT[1:], CONTENT + b"x"])
def test_another_file_is_refused_and_forgotten(
    server: Server, places: tuple[Path, Path], body: bytes
) -> None:
    one = source(server.address)
    server.body = body
    with pytest.raises(DataError, match=r"file\.bin: what .* sent is not the expected file"):
        one.locate("file.bin")
    assert listing(places[1]) == []


def test_a_wrong_part_is_not_continued_for_ever(server: Server, places: tuple[Path, Path]) -> None:
    one = source(server.address)
    part = places[1] / "thing/.file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"wrong" * 100)
    with pytest.raises(DataError, match="not the expected file"):
        one.locate("file.bin")
    assert one.locate("file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_blocked_address_gives_one_sentence(
    server: Server, places: tuple[Path, Path], status: int
) -> None:
    one = source(server.address)
    server.status = status
    with pytest.raises(DataError) as error:
        one.locate("file.bin")
    message = str(error.value)
    assert message.startswith("file.bin: cannot be downloaded from http://127.0.0.1")
    assert f"put the file into {places[1] / 'thing'} yourself" in message
    assert "\n" not in message
    assert listing(places[1]) == []


def test_offline_gives_one_sentence(places: tuple[Path, Path]) -> None:
    server = Server()
    server.close()
    one = source(server.address)
    with pytest.raises(DataError, match=r"cannot be downloaded .* put the file into"):
        one.locate("file.bin")


def test_without_an_address_one_is_told_where_to_put_the_file(places: tuple[Path, Path]) -> None:
    one = source()
    with pytest.raises(DataError) as error:
        one.locate("file.bin")
    assert "thing: file.bin is not on this machine and has no public address; put it into" in str(
        error.value
    )
    assert str(places[1] / "thing") in str(error.value)


def archive_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def archived(server: Server, members: dict[str, bytes]) -> Source:
    packed = archive_of(members)
    server.body = packed
    files = tuple(File(n, 4, digest(d)) for n, d in (("a.bin", b"aaaa"), ("b.bin", b"bbbb")))
    archive = File("all.tar.gz", len(packed), digest(packed), address=server.address)
    return Source("thing", "", "", files, archive=archive)


def test_an_archive_is_unpacked_and_removed(server: Server, places: tuple[Path, Path]) -> None:
    members = {"x/a.bin": b"aaaa", "../../b.bin": b"bbbb", "x/readme": b"hello"}
    one = archived(server, members)
    assert one.locate("b.bin").read_bytes() == b"bbbb"
    assert listing(places[1]) == ["a.bin", "b.bin"]
    assert listing(places[1].parent) == ["a.bin", "b.bin"]
    assert one.locate("a.bin").read_bytes() == b"aaaa"
    assert len(server.requests) == 1


def test_an_archive_without_the_files_is_refused(server: Server) -> None:
    one = archived(server, {"x/a.bin": b"aaaa"})
    with pytest.raises(DataError, match=r"all\.tar\.gz: does not hold b\.bin"):
        one.locate("a.bin")


def test_the_catalogue_lists_fetches_and_checks(
    server: Server, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = source(server.address)
    for name in list(SOURCES):
        monkeypatch.delitem(SOURCES, name)
    monkeypatch.setitem(SOURCES, "thing", one)
    assert [(row.status, row.file) for row in download.check()] == [("missing", "file.bin")]
    info = download.list_datasets()[0]
    assert (info.name, info.present, info.folder) == ("thing", False, places[0] / "thing")
    with pytest.raises(DataError, match=r"thing: is not \(completely\) on this machine"):
        download.path("thing")
    assert download.fetch("thing") == places[1] / "thing"
    assert download.path("thing") == places[1] / "thing"
    assert download.list_datasets()[0].present
    (places[1] / "thing/file.bin").write_bytes(CONTENT[1:])
    row = download.check("thing")[0]
    assert row.status == "damaged"
    assert "has 383999 bytes" in row.detail
    with pytest.raises(ParameterError, match="name: got 'other', expected one of thing"):
        download.fetch("other")


def test_a_leaf_folder_counts_as_femnist(places: tuple[Path, Path]) -> None:
    (places[0] / "femnist/data/train").mkdir(parents=True)
    assert download.fetch("femnist") == places[0] / "femnist/data"
    assert {i.name: i.present for i in download.list_datasets()}["femnist"]


def test_every_known_file_has_a_checksum_and_either_an_address_or_none() -> None:
    for one in SOURCES.values():
        for file in one.files:
            assert len(file.sha256) == 64
            assert file.size > 0
            if file.address is not None:
                assert file.address.startswith(("https://", "http://"))


def test_heart_disease_comes_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDADMM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(download, "download", None)
    folder = download.fetch("heart")
    assert folder == download.SHIPPED / "heart-disease"
    assert [row.status for row in download.check("heart")] == ["ok"] * 4
    told = (folder / "README.md").read_text("utf-8")
    assert SOURCES["heart-disease"].licence in told
    assert "10.24432/C52P4X" in told


def test_a_damaged_file_of_your_own_is_not_replaced_by_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDADMM_DATA", str(tmp_path))
    (tmp_path / "heart-disease").mkdir()
    (tmp_path / "heart-disease" / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(DataError, match=r"processed\.va\.data: has 6 bytes"):
        download.fetch("heart")
