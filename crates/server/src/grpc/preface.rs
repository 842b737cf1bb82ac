//! The first bytes of a connection: a client of this door says at once that it speaks HTTP/2.
//!
//! Whoever says nothing, or something else, is sent away before anything is kept for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::bounds::PREFACE_TIMEOUT;

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What somebody who speaks HTTP/1 is told.
const WRONG_PROTOCOL: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Content-Length: 48\r\nConnection: close\r\n\r\nThis port speaks gRPC: HTTP/2 without upgrade.\r\n";

/// A stream that has begun with the preface, which can be read again.
pub(super) struct Greeted<S> {
    /// How much of the preface was read again.
    read: usize,
    stream: S,
}

/// Waits for the preface.
///
/// # Errors
/// If something else comes, or nothing.
pub(super) async fn greeted<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
) -> io::Result<Greeted<S>> {
    let greeting = tokio::time::timeout(PREFACE_TIMEOUT, greeting(&mut stream));
    greeting.await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(Greeted { read: 0, stream })
}

async fn greeting<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    let (mut heard, mut length) = ([0; PREFACE.len()], 0);
    while length < heard.len() {
        match stream.read(&mut heard[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => length += read,
        }
        if !PREFACE.starts_with(&heard[..length]) {
            stream.write_all(WRONG_PROTOCOL).await?;
            stream.shutdown().await?;
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

impl<S: AsyncRead + Unpin> AsyncRead for Greeted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.read..];
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let now = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..now]);
        self.read += now;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Greeted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_http_1_is_as_long_as_it_says() {
        let text = std::str::from_utf8(WRONG_PROTOCOL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", body.len())),
            "{text}"
        );
    }

    #[tokio::test]
    async fn the_preface_is_read_again_and_what_follows_too() {
        let (mut client, server) = tokio::io::duplex(64);
        let (first, second) = PREFACE.split_at(7);
        client.write_all(first).await.unwrap();
        let sending = async {
            client.write_all(second).await.unwrap();
            client.write_all(b"and more").await.unwrap();
            drop(client);
        };
        let (stream, ()) = tokio::join!(greeted(server), sending);
        let (mut stream, mut heard) = (stream.unwrap(), Vec::new());
        stream.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, [&PREFACE[..], b"and more"].concat());
    }

    #[tokio::test]
    async fn something_else_is_answered_and_refused() {
        let (mut client, server) = tokio::io::duplex(1024);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let error = greeted(server).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
}
