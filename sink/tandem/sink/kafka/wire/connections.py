"""Connections to brokers: kafka-python's event loop and connection manager, with a reader for large responses.

kafka-python reads sockets 4 KiB at a time and copies the bytes three times before it decodes them. Fetch responses are
megabytes, so the transport here reads straight into a buffer of the frame's size and passes the whole frame to the
decoder. Frames are `size (int32) + body` (Kafka protocol guide, "Protocol Primitives").

Inner parts of kafka-python that are used, checked by tests/contract/test_kafka_python_connection.py:
`KafkaConnectionManager` (`_build_transport`, `_connect`, `bootstrapped`, `config`, `cluster`, `get_connection`, which
calls `maybe_raise_auth_failure` first, `least_loaded_node`, `connection_delay`, `wait_for`), `Future`,
`KafkaTCPTransport` and `KafkaSSLTransport` (`_read_from_sock`, `write`, `abort`, `_sock`, `_net`, `_read`, `_closed`,
`_writing`, `_write_buffer`, `_protocol`, `last_read`, `last_write`), `KafkaConnection` (`init_future`, `parser`,
`data_received`), `KafkaNetSocket` (`dns_lookup`, `socket`, `sock_connect`), `KafkaProtocol` (`receive_bytes`,
`_process_response`, `_validate_frame_size`, `in_flight_requests`),
the decoder that `FetchResponse._struct` generates for a version.
"""

from __future__ import annotations

import functools
import math
import random
import ssl
import struct
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.consumer import FetchResponse

from tandem.backup_avro.errors import PermanentError, TandemError
from tandem.sink.kafka.auth import client_config, tls
from tandem.sink.kafka.auth.tokens import Tokens
from tandem.sink.kafka.errors.broker_errors import meaning_of
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterUnreachableError
from tandem.sink.kafka.errors.error_codes import ErrorMeaning

_SIZE = struct.Struct(">i")
_WORTH_KEEPING = 128 << 10
_WORTH_A_VIEW = 4096
_WIDE = 4
_MOST_KEPT = 4
_QUIET = 64
"""Number of small frames in a row (half a minute of an idle tail) after which buffers of large frames are freed."""
_BOOTSTRAP_TRIES = 3
_FIRST_CONNECT_MS = 2_000
"""How long the first try to connect may take, twice as long with each failure. kafka-python's own 10 s all go to a
server that accepts connections and then hangs."""
_LOOK = 0.05
"""Seconds between two looks whether the brokers are known."""
_REBOOTSTRAP_AFTER = 10.0
_PATIENCE = 2.0
"""Seconds after which another broker is asked beside one that has not answered."""
_AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Frame:
    """One whole response in its own buffer, with the file methods that the decoder calls; makes no copies."""

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
        """Set the position to byte `at`."""
        self._at = at

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at


class FrameBuffers:
    """Memory for frames; a buffer is used again once no view of it exists any more.

    A newly allocated megabyte costs as much time as receiving it: the system clears every page on first access. Whether
    a view of a buffer still exists is known to `bytearray` itself: it refuses to grow then.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._small = 0

    def allocate(self, size: int) -> memoryview:
        """Return a view of `size` bytes with arbitrary content."""
        if size < _WORTH_KEEPING:
            self._small += 1
            if self._small % _QUIET == 0:
                self._kept = [buffer for buffer in self._kept if not _is_free(buffer)]
            return memoryview(bytearray(size))
        self._small = 0
        for buffer in self._kept:
            if size <= len(buffer) <= size * _WIDE and _is_free(buffer):
                return memoryview(buffer)[:size]
        self._kept = [buffer for buffer in self._kept if not _is_free(buffer)][-_MOST_KEPT + 1 :]
        buffer = bytearray(size + size // 8)
        buffer.append(0)  # allocates room for one more byte, so that `_is_free` never has to move the buffer
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
    """Decode a whole frame; replaces `KafkaProtocol.receive_bytes`."""
    response = parser.in_flight_requests[0].get_response_class() if parser.in_flight_requests else None
    if response is not None and response.API_KEY == FetchResponse.API_KEY:
        _keep_views(response)
    return [parser._process_response(frame)]  # noqa: SLF001 - see the module's docstring


@functools.cache
def _keep_views(response: Any) -> None:  # noqa: ANN401 - a versioned FetchResponse
    """Make a version's decoder return records as views of the frame: replaces the `bytes` that it calls on slices."""
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
    """Mixin over a kafka-python transport: reads whole frames, and writes at once if the socket accepts the bytes."""

    _sock: Any
    _net: Any
    _protocol: Any
    _read: bool
    _closed: bool
    _writing: bool
    _write_buffer: Any
    last_read: float
    last_write: float

    def __init__(self, *args: Any, buffers: FrameBuffers, **kwargs: Any) -> None:  # noqa: ANN401 - passed through
        super().__init__(*args, **kwargs)
        self._in_body = False
        self._filled = 0
        self._target = memoryview(bytearray(_SIZE.size))
        self._buffers = buffers

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
                    break  # the waiter for this response runs before later events of the socket, such as a hang-up
        except _AGAIN:
            pass
        except kafka_errors.KafkaProtocolError as error:
            protocol_error: Exception = error
            return protocol_error
        except OSError as error:
            lost = _lost(f"cannot read from the broker: {error}")
            lost.__cause__ = error
            return lost
        self.last_read = time.monotonic()
        return None

    def _decrypted(self) -> int:
        """Return the number of bytes that the socket object has buffered, which the selector can't see."""
        return 0

    def _target_is_full(self) -> bool:
        """Switch to the next target (size or body of a frame); return whether a response was passed on."""
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
        self._target = self._buffers.allocate(size)
        self._in_body = True
        self._filled = 0
        return False

    def write(self, data: Any) -> None:  # noqa: ANN401 - any buffer
        """Send at once as much as the socket accepts, so that a request leaves without a round of the event loop."""
        if self._sock is not None and not self._closed and not self._writing and not self._write_buffer:
            try:
                sent = self._sock.send(data)
            except _AGAIN:
                sent = 0
            except OSError:
                sent = 0  # the buffered write gets the same error and reports it
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
        """Do the TLS handshake, until `timeout_at` at most (kafka-python's own would wait for ever)."""
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)
            else:
                return


class _ReportingConnections(KafkaConnectionManager):  # type: ignore[misc]  # untyped base
    """kafka-python's connection manager with the transports above; subclasses get the outcome of each connection."""

    def __init__(self, net: Any, **config: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        self._tls = tls.take_tls_options(config)
        self._buffers = FrameBuffers()  # shared by all brokers, so that memory does not grow with their number
        super().__init__(net, **config)
        if self.ssl_enabled:
            tls.ssl_context(self._tls)  # a wrong path raises at once, not with the first connection

    async def _connect(self, node: Any, conn: Any, **kwargs: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        conn.init_future.add_callback(functools.partial(self._succeeded, node.node_id))
        conn.init_future.add_errback(functools.partial(self._failed, node.node_id))
        await super()._connect(node, conn, **kwargs)

    def _succeeded(self, node_id: int | str, _: object) -> None:
        """Record that a connection to a node is up."""

    def _failed(self, node_id: int | str, error: BaseException) -> None:
        """Record the error with which connecting to a node failed."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401 - no types
        sock = await self._open_socket(node, timeout_at)
        if not self.ssl_enabled:
            return _Plain(self._net, sock, host=node.host, buffers=self._buffers)
        try:
            transport = _Tls(
                self._net, sock, host=node.host, ssl_context=tls.ssl_context(self._tls), buffers=self._buffers
            )
        except Exception as error:
            sock.close()
            raise kafka_errors.KafkaConnectionError(str(error)) from error
        try:
            await transport.handshake_until(timeout_at)
        except Exception as error:
            transport.close()
            message = f"TLS handshake with {node.host}:{node.port} failed: {error}"
            raise kafka_errors.KafkaConnectionError(message) from error
        return transport

    async def _open_socket(self, node: Any, timeout_at: float | None) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Return a connected socket. kafka-python's own function leaves those that fail to the garbage collector.

        That one comes seldom: while brokers are away, an instance would have some more open files each minute.
        """
        factory = KafkaNetSocket(self.config["proxy_url"])
        failed = kafka_errors.KafkaConnectionError("DNS Resolution failure")
        for family, kind, protocol, _, address in factory.dns_lookup(node.host, node.port):
            sock = factory.socket(family, kind, protocol)
            connected = False
            try:
                sock.setblocking(False)
                for option in self.config["socket_options"]:
                    sock.setsockopt(*option)
                await factory.sock_connect(self._net, sock, address, timeout_at=timeout_at)
                connected = True
            except kafka_errors.KafkaTimeoutError:
                raise kafka_errors.KafkaConnectionError("Connection timed out") from None
            except (kafka_errors.KafkaConnectionError, OSError) as error:
                failed = kafka_errors.KafkaConnectionError(f"unable to connect: {error}")
            finally:
                if not connected:
                    sock.close()
            if connected:
                return sock
        raise failed


class FailFastConnections(_ReportingConnections):
    """For kafka-python's producer and admin client: an error that only a person can fix ends their start at once.

    By itself that client retries until its time limit, and then only reports that the limit is over.
    """

    def __init__(self, net: Any, **config: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        self._refusals: dict[int | str, BaseException] = {}
        super().__init__(net, **config)

    def _succeeded(self, node_id: int | str, _: object) -> None:
        self._refusals.pop(node_id, None)

    def _failed(self, node_id: int | str, error: BaseException) -> None:
        if isinstance(explain(error, ""), PermanentError):
            self._refusals[node_id] = error

    def maybe_raise_auth_failure(self, node_id: int | str) -> None:
        """Raise the error with which that node refused the last connection; called before each new one."""
        refusal = self._refusals.get(node_id)
        if refusal is not None:
            raise refusal


class Connections(_ReportingConnections):
    """For the fetcher: records the errors of connecting, and leaves the reaction to the caller.

    A broker that refuses the login is tried again like one that is down. As long as any other broker accepts the login,
    the fault is that broker's: an expired certificate, credentials that have not reached it yet.
    """

    def __init__(self, net: Any, *, servers: str, **config: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        """`servers` are the bootstrap servers as the user wrote them."""
        self._servers = servers
        self.last_error: BaseException | None = None  # why the last attempt failed; the reader may reset it
        self.worst_error: BaseException | None = None  # the same, but only a successful connection resets it
        self._failures: dict[int | str, tuple[BaseException, int]] = {}  # by node: the last one, how many in a row
        self._in_vain_since = math.inf
        super().__init__(net, **config)
        # A backup must never create the topics that it is configured to read.
        self.cluster.config["allow_auto_create_topics"] = False

    def _succeeded(self, node_id: int | str, _: object) -> None:
        self._failures.pop(node_id, None)
        self.last_error = self.worst_error = None

    def _failed(self, node_id: int | str, error: BaseException) -> None:
        if not self.closed:
            self.last_error = self.worst_error = error
            self._failures[node_id] = (error, self._failures.get(node_id, (error, 0))[1] + 1)

    def maybe_raise_auth_failure(self, node_id: int | str) -> None:
        """Raise nothing: else kafka-python would never try a broker again that has refused the credentials."""

    async def reach(self, timeout_s: float) -> None:
        """Wait until a configured server has named the brokers. Raises ClusterAuthenticationError if all refuse.

        Raises kafka-python's exceptions as well. Its own call gives all of the time to one server, which may hang.
        """
        deadline = time.monotonic() + timeout_s
        reached = None if self.bootstrapped else self.bootstrap_async()
        while reached is not None and not reached.is_done:
            refused = self.refused_by_all()
            if refused is not None:
                raise refused
            if time.monotonic() >= deadline:
                raise kafka_errors.KafkaTimeoutError(f"no answer within {timeout_s:g} s")
            await self._net.sleep(_LOOK)
        if reached is not None:
            await reached

    async def ask_any(self, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Send `make()`, a request that any broker can answer, and return the first response.

        A broker that hangs keeps its connections: it would be waited for until the request times out. So another one is
        asked, too, every two seconds. Raises kafka-python's exception when none of those that were asked is left. When
        that lasts, all known brokers may have moved: the configured servers are asked who the brokers are (KIP-899).
        """
        began = time.monotonic()
        try:
            response = await self._first_of(make)
        except kafka_errors.KafkaError:
            now = time.monotonic()
            self._in_vain_since = min(self._in_vain_since, began)
            if now - self._in_vain_since >= _REBOOTSTRAP_AFTER:
                self._in_vain_since = now
                self.bootstrap_async()
            raise
        self._in_vain_since = math.inf
        return response

    async def _first_of(self, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - kafka-python has no types
        first = Future()
        waiting: set[int | str | None] = set()
        until = time.monotonic() + self.config["request_timeout_ms"] / 1000

        def succeeded(response: object) -> None:
            if not first.is_done:
                first.success(response)

        def failed(node: int | str | None, error: BaseException) -> None:
            waiting.discard(node)
            if not waiting and not first.is_done:
                first.failure(error)

        node = self.least_loaded_node()
        while not first.is_done:
            if node is not None or not waiting:
                waiting.add(node)
                self.send(make(), node_id=node).add_callback(succeeded).add_errback(functools.partial(failed, node))
            try:
                return await self.wait_for(first, _PATIENCE * 1000)
            except kafka_errors.KafkaTimeoutError:  # if it is the request's own, `first` is done
                node = self._not_asked(waiting) if time.monotonic() < until else None
        return await first

    def _not_asked(self, waiting: Collection[int | str | None]) -> int | str | None:
        """Return a broker that can be asked besides these, if possible one that is connected; None if there is none."""
        nodes: list[int | str] = [broker.node_id for broker in self.cluster.brokers()]
        left = [node for node in nodes if node not in waiting and self.connection_delay(node) <= 0]
        connected = {connection.node_id for connection in self.least_used_connections()}
        return random.choice([node for node in left if node in connected] or left or [None])  # noqa: S311 - no secret

    def refused_by_all(self) -> ClusterAuthenticationError | None:
        """Return the refusal if all brokers refuse the login, which only a person can fix; else None.

        After the bootstrap all known brokers have to refuse. Before it, all configured servers have to fail in several
        tries, and one of them has to refuse: one address may lead to different brokers at different times.
        """
        if self.bootstrapped:
            asked = [node.node_id for node in self.cluster.brokers()]
        else:
            asked = [node.node_id for node in self.cluster.bootstrap_brokers()]
        failed = [self._failures[node] for node in asked if node in self._failures]
        refusals = [refusal for refusal in (_refusal(error, self._servers) for error, _ in failed) if refusal]
        if self.bootstrapped:
            final = len(refusals) == len(asked)
        else:
            final = len(failed) == len(asked) and sum(count for _, count in failed) >= _BOOTSTRAP_TRIES
        return refusals[0] if refusals and final else None

    def refusal(self, node_id: int | str | None) -> str | None:
        """Return why one broker refused the login at the last attempt, with a remedy; None if it did not refuse."""
        if node_id is None or node_id not in self._failures:
            return None
        node = self.cluster.broker_metadata(node_id)
        where = "its address" if node is None else f"{node.host}:{node.port}"
        typed = _refusal(self._failures[node_id][0], where)
        if typed is None:
            return None
        return (
            f"broker {node_id} does not let us in: {typed.args[0]} (another broker does, or may: renew this one's "
            "certificate, or see in its log why it refuses)"
        )


class _Bearer(AbstractTokenProvider):  # type: ignore[misc]  # untyped base
    """Supplies tokens to kafka-python; Tandem's errors become the causes of kafka-python's."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:
        """Return a valid token; the event loop waits meanwhile."""
        try:
            return self._tokens.current()[0].value
        except PermanentError as error:
            raise kafka_errors.SaslAuthenticationFailedError(str(error)) from error
        except TandemError as error:
            raise kafka_errors.KafkaConnectionError(str(error)) from error

    def extensions(self) -> dict[str, str]:
        """Return the extensions sent with the token."""
        return self._tokens.extensions


def with_login(config: dict[str, Any]) -> dict[str, Any]:
    """Return `config` with `Tokens` wrapped in the token provider class that kafka-python requires."""
    tokens = config.get("sasl_oauth_token_provider")
    return config if tokens is None else config | {"sasl_oauth_token_provider": _Bearer(tokens)}


def open_for_questions(props: Mapping[str, client_config.Value]) -> tuple[Any, Connections]:
    """Return (event loop, connection manager) for librdkafka's `props`, for who asks one of several servers.

    Raises ConfigError.
    """
    config = client_config.for_kafka_python(props)
    config.setdefault("socket_connection_setup_timeout_ms", _FIRST_CONNECT_MS)
    config["receive_message_max_bytes"] = client_config.fetch_limits(props).receive_bytes
    return open_connections(config, servers=client_config.servers_of(props))


def open_connections(config: dict[str, Any], *, servers: str) -> tuple[Any, Connections]:
    """Return (event loop, connection manager) for `client_config.for_kafka_python(...)`; nothing is connected yet.

    `servers` are the bootstrap servers as the user wrote them, for messages.

    Both belong to the one thread that runs the loop. Raises ConfigError for certificates that can't be used.
    """
    # Decoding a large response may take longer than the loop's threshold for a slow step.
    net = NetworkSelector(client_id=config.get("client_id", "tandem"), slow_task_threshold_secs=0)
    return net, Connections(net, servers=servers, **with_login(config))


def _refusal(error: BaseException, servers: str) -> ClusterAuthenticationError | None:
    typed = explain(error, servers)
    return typed if isinstance(typed, ClusterAuthenticationError) else None


# A broker that restarts also closes the connection like this, so these errors are not permanent.
_HUNG_UP = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_OF_MECHANISM = "sasl.username, sasl.password or sasl.oauthbearer.*"
_REFUSED = frozenset({ErrorMeaning.AUTHENTICATION, ErrorMeaning.DENIED})


def explain(error: BaseException, servers: str) -> TandemError:
    """Return the typed error for a failed connection. kafka-python's texts contain no secret of the configuration.

    `servers` are the bootstrap servers as the user wrote them.
    """
    if meaning_of(error) in _REFUSED and not isinstance(error.__cause__, TandemError):
        return ClusterAuthenticationError(
            f"The Kafka brokers at {servers} refuse the credentials: {error}",
            code="TDM-K064",
            remedy=f"check sasl.mechanism, {_OF_MECHANISM} and security.protocol",
        )
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TandemError):
            return cause  # an error of Tandem: no token, or no usable certificate
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ClusterAuthenticationError(
                f"The certificate of the Kafka brokers at {servers} is not trusted: {cause.verify_message}",
                code="TDM-K065",
                remedy="set ssl.ca.location to the file of the certificate authority that signed it",
            )
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _HUNG_UP):
            return ClusterAuthenticationError(
                f"TLS with the Kafka brokers at {servers} failed: {cause.reason or cause}",
                code="TDM-K066",
                remedy="check security.protocol, the port, and ssl.certificate.location if brokers ask for one",
            )
        cause = cause.__cause__ or cause.__context__ or _wrapped_in(cause)
    if isinstance(error, kafka_errors.InvalidReceiveError):
        return ClusterUnreachableError(
            f"What answers at {servers} does not speak Kafka in this way: {error}",
            code="TDM-K067",
            remedy="check the port and security.protocol: a TLS listener answers plain requests like this",
        )
    return ClusterUnreachableError(
        f"No Kafka broker answers at {servers}: {str(error) or type(error).__name__}",
        code="TDM-K068",
        remedy="check bootstrap.servers and the network, that the brokers run, and security.protocol",
    )


def _wrapped_in(error: BaseException) -> BaseException | None:
    # kafka-python's transports pass on an error of the socket as the argument of their own.
    inner = error.args[0] if error.args else None
    return inner if isinstance(inner, BaseException) else None
