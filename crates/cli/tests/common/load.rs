//! Clients that send one request after another over a kept connection, as services do.

use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tollgate_rig::wait;

/// The timeout of an answer, and of conditions that must become true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No connection could be opened, so nothing was sent.
    Refused(io::Error),
    /// The request was sent, and there is no answer, or not the expected one.
    Lost(String),
}

/// Sends one request, and checks the answer.
pub(crate) trait Client: Send + 'static {
    fn send(&mut self) -> Result<(), Failure>;
}

/// A connection that is opened when it is needed. A client that sees the end of a connection before it
/// sends a request opens another one.
struct Kept {
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    stream: Option<BufReader<Stream>>,
}

impl Kept {
    fn new(address: SocketAddr) -> Kept {
        Kept {
            address,
            tls: None,
            stream: None,
        }
    }

    /// Sends `request`, and returns the connection, to read the answer from.
    fn send(&mut self, request: &[u8]) -> Result<&mut BufReader<Stream>, Failure> {
        self.stream
            .take_if(|stream| has_ended(stream.get_ref().socket()).unwrap_or(true));
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => BufReader::new(self.connect().map_err(Failure::Refused)?),
        };
        let stream = self.stream.insert(stream);
        stream.get_mut().write_all(request).map_err(lost)?;
        Ok(stream)
    }

    fn connect(&self) -> io::Result<Stream> {
        let mut socket = connect(self.address)?;
        let Some(tls) = &self.tls else {
            return Ok(Stream::Plain(socket));
        };
        let name = ServerName::from(self.address.ip());
        let mut tls = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Stream::Tls(Box::new(StreamOwned::new(tls, socket))))
    }
}

/// A connection, with TLS or without.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => &tls.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(to),
            Stream::Tls(tls) => tls.read(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(tls) => tls.flush(),
        }
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Whether the server has closed the connection.
fn has_ended(stream: &TcpStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

fn lost(error: impl fmt::Display) -> Failure {
    Failure::Lost(error.to_string())
}

/// Sends HTTP/1.1 requests.
pub(crate) struct Http {
    kept: Kept,
    request: String,
}

impl Http {
    /// Makes a client that asks `/v1/check`.
    pub(crate) fn check(address: SocketAddr) -> Http {
        let body = r#"{"attributes":{"action":"search"}}"#;
        let request = format!(
            "POST /v1/check HTTP/1.1\r\nHost: limits\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Http::new(address, request)
    }

    /// Makes a client that asks for a page.
    pub(crate) fn get(address: SocketAddr, path: &str) -> Http {
        Http::new(
            address,
            format!("GET {path} HTTP/1.1\r\nHost: limits\r\n\r\n"),
        )
    }

    /// Lets the client use TLS.
    pub(crate) fn with_tls(mut self, tls: Option<Arc<ClientConfig>>) -> Http {
        self.kept.tls = tls;
        self
    }

    fn new(address: SocketAddr, request: String) -> Http {
        Http {
            kept: Kept::new(address),
            request,
        }
    }
}

impl Client for Http {
    fn send(&mut self) -> Result<(), Failure> {
        let stream = self.kept.send(self.request.as_bytes())?;
        let answer = read_answer(stream).map_err(lost)?;
        if answer.closes() {
            self.kept.stream = None;
        }
        match answer.status {
            200 => Ok(()),
            _ => Err(lost(format!("{}\n{}", answer.head, answer.body))),
        }
    }
}

/// An answer of an HTTP/1.1 server.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Whether the server will close the connection.
    pub(crate) fn closes(&self) -> bool {
        self.head
            .to_lowercase()
            .contains("\r\nconnection: close\r\n")
    }
}

/// Reads an answer with a `Content-Length`.
pub(crate) fn read_answer(stream: &mut impl BufRead) -> io::Result<Answer> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                format!("closed after {head:?}"),
            ));
        }
    }
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    let length = head.to_lowercase();
    let length = length.split("\r\ncontent-length: ").nth(1);
    let length = length.and_then(|it| it.split("\r\n").next()?.parse().ok());
    let (Some(status), Some(length)) = (status, length) else {
        return Err(io::Error::new(ErrorKind::InvalidData, head));
    };
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let body = String::from_utf8_lossy(&body).into_owned();
    Ok(Answer { status, head, body })
}

/// Sends `CL.THROTTLE` to the RESP door.
pub(crate) struct Throttle(Kept);

impl Throttle {
    pub(crate) fn new(address: SocketAddr) -> Throttle {
        Throttle(Kept::new(address))
    }

    /// Lets the client use TLS.
    pub(crate) fn with_tls(mut self, tls: Option<Arc<ClientConfig>>) -> Throttle {
        self.0.tls = tls;
        self
    }
}

impl Client for Throttle {
    fn send(&mut self) -> Result<(), Failure> {
        let stream = self.0.send(b"CL.THROTTLE key 1000000 1000000 1\r\n")?;
        let mut answer = String::new();
        for _ in 0..6 {
            if stream.read_line(&mut answer).map_err(lost)? == 0 {
                return Err(lost(format!("closed after {answer:?}")));
            }
        }
        match answer.starts_with("*5\r\n:0\r\n") {
            true => Ok(()),
            false => Err(Failure::Lost(answer)),
        }
    }
}

/// Clients that send requests, each on its own thread.
pub(crate) struct Load {
    threads: Vec<JoinHandle<Vec<String>>>,
    shared: Arc<Shared>,
}

struct Shared {
    stop: AtomicBool,
    /// The answers of each client.
    answers: Vec<AtomicU64>,
}

impl Load {
    /// Starts the clients. Each of them ends when it is refused.
    pub(crate) fn start(clients: Vec<Box<dyn Client>>) -> Load {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            answers: clients.iter().map(|_| AtomicU64::new(0)).collect(),
        });
        let run = |(index, mut client): (usize, Box<dyn Client>)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut lost = Vec::new();
                while !shared.stop.load(Ordering::Relaxed) {
                    match client.send() {
                        Ok(()) => drop(shared.answers[index].fetch_add(1, Ordering::Relaxed)),
                        Err(Failure::Refused(_)) => break,
                        Err(Failure::Lost(why)) => lost.push(format!("client {index}: {why}")),
                    }
                }
                lost
            })
        };
        let threads = clients.into_iter().enumerate().map(run).collect();
        Load { threads, shared }
    }

    /// Waits until each client has had `count` further answers.
    pub(crate) fn wait_for_answers(&self, count: u64) {
        let read = || -> Vec<u64> {
            let answers = self.shared.answers.iter();
            answers.map(|it| it.load(Ordering::Relaxed)).collect()
        };
        let before = read();
        wait::until("every client gets answers", PATIENCE, || {
            let mut pairs = before.iter().zip(read());
            pairs.all(|(before, now)| now >= before + count)
        });
    }

    /// Tells the clients to end after their request.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until all clients have ended. Returns how many answers they had, and the requests that were
    /// lost.
    pub(crate) fn join(self) -> (u64, Vec<String>) {
        let joined = self.threads.into_iter().map(|it| it.join().unwrap());
        let lost = joined.flatten().collect();
        let answers = self.shared.answers.iter();
        (answers.map(|it| it.load(Ordering::Relaxed)).sum(), lost)
    }
}
