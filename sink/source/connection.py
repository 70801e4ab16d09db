"""Connections to brokers: kafka-python's event loop and connection manager, with a reader for large responses.

kafka-python reads sockets 4 KiB at a time and copies what it read three times before it decodes it. Fetch responses are
megabytes, so the transport here reads straight into a buffer of the frame's size and hands the whole frame to the
decoder. Frames are `size (int32) + body` (Kafka protocol guide, "Protocol Primitives").

Inner parts of kafka-python that are used, held by tests/contract/test_kafka_python_connection.py:
`KafkaConnectionManager` (`_build_transport`, `_connect`, `_auth_failures`, `config`, `cluster`),
`KafkaTCPTransport` and `KafkaSSLTransport` (`_read_from_sock`, `write`, `abort`, `_sock`, `_net`, `_read`, `_closed`,
`_writing`, `_write_buffer`, `_protocol`, `last_read`, `last_write`), `KafkaConnection` (`init_future`, `parser`,
`data_received`), `KafkaProtocol` (`receive_bytes`, `_process_response`, `_validate_frame_size`, `in_flight_requests`),
the decoder that `FetchResponse._struct` generates for a version.
"""

from __future__ import annotations

import functools
import ssl
import struct
import time
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.consumer import FetchResponse

from backup_avro.errors import TandemError
from sink.source.errors import ClusterAuthenticationError, ClusterUnreachableError

_SIZE = struct.Struct(">i")
_WORTH_KEEPING = 128 << 10
_WORTH_A_VIEW = 4096
_WIDE = 4
_MOST_KEPT = 4
_AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Frame:
    """One whole response in a buffer of its own, with as much of a file's ways as the decoder wants; no copies."""

    __slots__ = ("_at", "_view")

    def __init__(self, body: memoryview) -> None:
        self._view = body
        self._at = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = None) -> memoryview:
        """Return the next `size` bytes, or the rest, as a view."""
        start = self._at
        self._at = len(self._view) if size is None else min(start + size, len(self._view))
        return self._view[start : self._at]

    def seek(self, at: int) -> None:
        """Go to byte `at`."""
        self._at = at

    def tell(self) -> int:
        """Where the next read starts."""
        return self._at


class Buffers:
    """Memory for frames, used again when nobody looks at it any more.

    A megabyte that the system hands out anew costs as much time as receiving it: every page is cleared when it is
    touched. Whether a view of a buffer is still held somewhere is what `bytearray` itself knows: it does not grow then.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Return `size` bytes whose content is of no interest."""
        if size < _WORTH_KEEPING:
            return memoryview(bytearray(size))
        for buffer in self._kept:
            if size <= len(buffer) <= size * _WIDE and _is_free(buffer):
                return memoryview(buffer)[:size]
        self._kept = [buffer for buffer in self._kept if not _is_free(buffer)][-_MOST_KEPT + 1 :]
        buffer = bytearray(size + size // 8)
        buffer.append(0)  # makes room for one more, so that it need not move for that again
        self._kept.append(buffer)
        return memoryview(buffer)[:size]


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(0)
    except BufferError:
        return False
    del buffer[-1]
    return True


def _decode_frame(parser: Any, frame: Frame) -> list[Any]:  # noqa: ANN401 - kafka-python has no types
    """Stand-in for `KafkaProtocol.receive_bytes` for frames that come whole."""
    response = parser.in_flight_requests[0].get_response_class() if parser.in_flight_requests else None
    if response is not None and response.API_KEY == FetchResponse.API_KEY:
        _keep_views(response)
    return [parser._process_response(frame)]  # noqa: SLF001 - see the module's docstring


@functools.cache
def _keep_views(response: Any) -> None:  # noqa: ANN401 - a versioned FetchResponse
    """Have a version's decoder hand out records as views of the frame: it calls `bytes` on what it cuts out."""
    version = response._class_version  # noqa: SLF001 - see the module's docstring
    flexible = response.flexible_version_q(version)
    decode = response._struct.compiled_decode_from(  # noqa: SLF001 - likewise
        version, compact=flexible, tagged=flexible, data_class=response[None]
    )
    decode.__globals__["bytes"] = _view


def _view(piece: memoryview) -> bytes | memoryview:
    return piece if len(piece) >= _WORTH_A_VIEW else bytes(piece)


def _lost(why: str) -> Exception:
    error: Exception = kafka_errors.KafkaConnectionError(why)
    return error


class _WholeFrames:
    """Mixin over a kafka-python transport: reads whole frames, and writes at once when the socket takes it."""

    _sock: Any
    _net: Any
    _protocol: Any
    _read: bool
    _closed: bool
    _writing: bool
    _write_buffer: Any
    last_read: float
    last_write: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed through
        super().__init__(*args, **kwargs)
        self._in_body = False
        self._filled = 0
        self._target = memoryview(bytearray(_SIZE.size))
        self._buffers = Buffers()

    async def _read_from_sock(self) -> None:
        while self._read and not self._closed:
            await self._net.wait_read(self._sock)
            error = self._read_what_is_there()
            if error is not None:
                self.abort(error=error)  # type: ignore[attr-defined]  # of the transport
                return

    def _read_what_is_there(self) -> Exception | None:
        try:
            while self._read and not self._closed:
                got = self._sock.recv_into(self._target[self._filled :])
                if not got:
                    return _lost("the broker closed the connection")
                self._filled += got
                if self._filled < len(self._target):
                    continue
                if self._target_is_full() and not self._decrypted():
                    break  # let whoever waits for this response run before what follows it, such as a hang-up
        except _AGAIN:
            pass
        except kafka_errors.KafkaProtocolError as error:
            protocol_error: Exception = error
            return protocol_error
        except OSError as error:
            return _lost(f"cannot read from the broker: {error}")
        self.last_read = time.monotonic()
        return None

    def _decrypted(self) -> int:
        """Bytes that the socket object holds itself, of which the selector knows nothing."""
        return 0

    def _target_is_full(self) -> bool:
        """Go on to the next target; return whether a response was handed on."""
        connection = self._protocol
        parser = connection.parser
        full = self._target
        if self._in_body:
            self._target = memoryview(bytearray(_SIZE.size))
            self._in_body = False
            self._filled = 0
            if "receive_bytes" not in vars(parser):
                parser.receive_bytes = functools.partial(_decode_frame, parser)
            self.last_read = time.monotonic()
            connection.data_received(Frame(full))
            return True
        (size,) = _SIZE.unpack(full)
        parser._validate_frame_size(size)  # noqa: SLF001 - see the module's docstring
        self._target = self._buffers.take(size)
        self._in_body = True
        self._filled = 0
        return False

    def write(self, data: Any) -> None:  # noqa: ANN401 - any buffer
        """Send at once what the socket takes, so that a request needs no round of the event loop to leave."""
        if self._sock is not None and not self._closed and not self._writing and not self._write_buffer:
            try:
                sent = self._sock.send(data)
            except _AGAIN:
                sent = 0
            except OSError:
                sent = 0  # the buffered write meets the same error and reports it in its own way
            else:
                self.last_write = time.monotonic()
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        super().write(data)  # type: ignore[misc]  # of the transport


class _Plain(_WholeFrames, KafkaTCPTransport):  # type: ignore[misc]  # untyped base
    pass


class _Tls(_WholeFrames, KafkaSSLTransport):  # type: ignore[misc]  # untyped base
    def _decrypted(self) -> int:
        return int(self._sock.pending()) if self._sock is not None else 0

    async def handshake_until(self, timeout_at: float | None) -> None:
        """Do the TLS handshake; a silent peer ends it at `timeout_at` (kafka-python's own would wait for ever)."""
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)
            else:
                return


class Connections(KafkaConnectionManager):  # type: ignore[misc]  # untyped base
    """kafka-python's connection manager with the transports above, and a memory of why connecting failed."""

    def __init__(self, net: Any, **config: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        self.last_error: BaseException | None = None  # why the last attempt failed; whoever reads it may reset it
        self.worst_error: BaseException | None = None  # the same, but only a connection resets it
        verify = config.pop("ssl_verify_certificate", True)
        super().__init__(net, **config)
        # A backup must never create what it is asked to read.
        self.cluster.config["allow_auto_create_topics"] = False
        if self.ssl_enabled and not verify:
            self.config["ssl_context"] = _unverified_context(self.config)

    async def _connect(self, node: Any, conn: Any, **kwargs: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        conn.init_future.add_callback(self._succeeded)
        conn.init_future.add_errback(self._failed)
        await super()._connect(node, conn, **kwargs)

    def _succeeded(self, _: object) -> None:
        self.last_error = self.worst_error = None

    def forget_refusals(self) -> None:
        """Let brokers be tried again that refused the credentials; kafka-python never would by itself."""
        self._auth_failures.clear()

    def _failed(self, error: BaseException) -> None:
        if not self.closed:
            self.last_error = self.worst_error = error

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401 - no types
        sock = await create_connection(
            self._net,
            node.host,
            node.port,
            self.config["socket_options"],
            proxy_url=self.config["proxy_url"],
            timeout_at=timeout_at,
        )
        if not self.ssl_enabled:
            return _Plain(self._net, sock, host=node.host)
        options = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
        transport = _Tls(self._net, sock, host=node.host, **options)
        try:
            await transport.handshake_until(timeout_at)
        except Exception as error:
            transport.close()
            message = f"TLS handshake with {node.host}:{node.port} failed: {error}"
            raise kafka_errors.KafkaConnectionError(message) from error
        return transport


def _unverified_context(config: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if config["ssl_certfile"]:
        context.load_cert_chain(config["ssl_certfile"], config["ssl_keyfile"], config["ssl_password"])
    return context


def open_connections(config: dict[str, Any]) -> tuple[Any, Connections]:
    """Return (event loop, connection manager) for `client_config.for_kafka_python(...)`; nothing is connected yet.

    Both belong to the one thread that runs the loop.
    """
    # Decoding a large response may take longer than the loop's idea of a slow step.
    net = NetworkSelector(client_id=config.get("client_id", "tandem"), slow_task_threshold_secs=0)
    return net, Connections(net, **config)


_AUTHENTICATION = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.AuthorizationError,
)


def explain(error: BaseException, servers: str) -> TandemError:
    """Turn why a connection failed into a typed error; no secret of the configuration appears in kafka-python's texts.

    `servers` are the bootstrap servers as the user wrote them.
    """
    if isinstance(error, _AUTHENTICATION):
        return ClusterAuthenticationError(
            f"The Kafka brokers at {servers} refuse the credentials: {error}",
            remedy="check sasl.mechanism, sasl.username, sasl.password and security.protocol",
        )
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ClusterAuthenticationError(
                f"The certificate of the Kafka brokers at {servers} is not trusted: {cause.verify_message}",
                remedy="set ssl.ca.location to the file of the certificate authority that signed it",
            )
        if isinstance(cause, ssl.SSLError):
            return ClusterAuthenticationError(
                f"TLS with the Kafka brokers at {servers} failed: {cause.reason or cause}",
                remedy="check security.protocol, the port, and ssl.certificate.location if brokers ask for one",
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, kafka_errors.InvalidReceiveError):
        return ClusterUnreachableError(
            f"What answers at {servers} does not speak Kafka in this way: {error}",
            remedy="check the port and security.protocol: a TLS listener answers plain requests like this",
        )
    return ClusterUnreachableError(
        f"No Kafka broker answers at {servers}: {str(error) or type(error).__name__}",
        remedy="check bootstrap.servers and the network, and that the brokers run",
    )
