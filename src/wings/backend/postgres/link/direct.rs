//! Detection of a pooler between a connection and the server.
//!
//! A prepared statement belongs to a session of the server. Behind a pooler in transaction mode the
//! next transaction may run in another session, which does not know the statement, or knows another
//! one by its name. So statements are prepared only where a session is the connection's own.
//!
//! At the login a client is told the number of its process and a key, with which it can ask for the
//! end of a running request. A pooler that shares sessions must tell numbers of its own: with those
//! of the server, one client would end the requests of another. The number of the process that the
//! login told is hence that of the session (`pg_backend_pid()`) only if no such pooler is between.
use std::{
    future::{Ready, ready},
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Client,
    tls::{ChannelBinding, TlsConnect, TlsStream},
    types::Type,
};

/// The code of a request to cancel; the number of the process follows it.
const CANCEL: [u8; 4] = 80_877_102_i32.to_be_bytes();

/// Returns the number of the server's process that the login told.
pub(crate) async fn told_process(client: &Client) -> Option<i32> {
    let mut written = Vec::new();
    client.cancel_token().cancel_query_raw(Recorder(&mut written), NoEncryption).await.ok()?;
    let at = written.windows(CANCEL.len()).position(|part| part == CANCEL)? + CANCEL.len();
    Some(i32::from_be_bytes(*written.get(at..)?.first_chunk()?))
}

/// Returns `true` if a session is known to be the connection's own.
pub(crate) async fn is_direct(client: &Client) -> bool {
    let told = told_process(client).await;
    let asked = client.query_typed("SELECT pg_backend_pid() = $1", &[(&told, Type::INT4)]).await;
    asked.is_ok_and(|rows| rows.first().is_some_and(|row| matches!(row.try_get(0), Ok(Some(true)))))
}

/// A stream that keeps what is written, and agrees to encrypt.
struct Recorder<'a>(&'a mut Vec<u8>);

impl AsyncRead for Recorder<'_> {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        buf.put_slice(if buf.remaining() > 0 { b"S" } else { b"" });
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Recorder<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for Recorder<'_> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

struct NoEncryption;

impl<'a> TlsConnect<Recorder<'a>> for NoEncryption {
    type Stream = Recorder<'a>;
    type Error = io::Error;
    type Future = Ready<io::Result<Recorder<'a>>>;

    fn connect(self, stream: Recorder<'a>) -> Self::Future {
        ready(Ok(stream))
    }
}
