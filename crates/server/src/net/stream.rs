//! A connection, encrypted or not. Its first bytes show whether the client speaks HTTP/2.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{client, server};

use super::Stopping;
use crate::tls::ClientCertificate;

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// TCP or TLS. In tests also a pipe.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {
    /// Returns the connection below TLS; `None` for a pipe.
    fn tcp(&self) -> Option<&TcpStream>;
}

impl Transport for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Transport for server::TlsStream<TcpStream> {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self.get_ref().0)
    }
}

impl Transport for client::TlsStream<TcpStream> {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self.get_ref().0)
    }
}

#[cfg(test)]
impl Transport for tokio::io::DuplexStream {
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }
}

/// A connection. The bytes that `read_preface` took are read again by later readers.
pub(crate) struct Stream {
    transport: Box<dyn Transport>,
    /// Whether TLS negotiated HTTP/2; `None` in plain text, where nothing is negotiated.
    pub(crate) is_http2: Option<bool>,
    /// The certificate of the client, if TLS has verified one.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    first: [u8; PREFACE.len()],
    /// How many bytes of `first` were received.
    received: usize,
    /// How many of the received bytes were read again.
    replayed: usize,
}

impl Stream {
    pub(crate) fn new(transport: impl Transport + 'static, is_http2: Option<bool>) -> Stream {
        Stream {
            transport: Box::new(transport),
            is_http2,
            certificate: None,
            first: [0; PREFACE.len()],
            received: 0,
            replayed: 0,
        }
    }

    /// Returns whether the connection ended before its first byte, or within the preface.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.received < PREFACE.len() && PREFACE.starts_with(&self.first[..self.received])
    }

    /// Reads until the preface is complete, or something else has arrived. Returns whether it is the
    /// preface.
    pub(crate) async fn read_preface(&mut self) -> io::Result<bool> {
        while self.is_cut_short() {
            let rest = &mut self.first[self.received..];
            match self.transport.read(rest).await? {
                0 => return Ok(false),
                read => self.received += read,
            }
        }
        Ok(self.first == *PREFACE)
    }

    /// Like `read_preface`, but returns `None` if the server stops before the first byte arrives.
    pub(crate) async fn read_preface_before(
        &mut self,
        stopping: &Stopping,
    ) -> io::Result<Option<bool>> {
        tokio::select! {
            biased;
            read = self.read_preface() => return read.map(Some),
            () = stopping.last_call() => {}
        }
        match self.received {
            0 => Ok(None),
            _ => self.read_preface().await.map(Some),
        }
    }

    /// Keeps written bytes back for at most 200 ms, so that a shutdown sends them together with the end
    /// of the connection. `false` sends them.
    pub(crate) fn cork(&self, cork: bool) {
        if let Some(tcp) = self.transport.tcp() {
            // Without the cork, the end comes a moment after the bytes.
            let _ = SockRef::from(tcp).set_tcp_cork(cork);
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.replayed < this.received {
            let rest = &this.first[this.replayed..this.received];
            let part = &rest[..rest.len().min(buffer.remaining())];
            buffer.put_slice(part);
            this.replayed += part.len();
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.transport).poll_read(context, buffer)
    }
}

/// Does not offer vectored writes. With them, HTTP/2 would send the head and the data of an answer of 256
/// bytes or more in two system calls.
impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().transport).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn preface_and_the_bytes_after_it_are_read_again() {
        let (mut client, server) = tokio::io::duplex(64);
        let (first, second) = PREFACE.split_at(7);
        client.write_all(first).await.unwrap();
        let sending = async {
            client.write_all(second).await.unwrap();
            client.write_all(b"and more").await.unwrap();
            drop(client);
        };
        let mut stream = Stream::new(server, None);
        let (is_http2, ()) = tokio::join!(stream.read_preface(), sending);
        assert!(is_http2.unwrap());
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, [&PREFACE[..], b"and more"].concat());
    }
}
