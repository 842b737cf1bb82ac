//! Answers that are streamed: the first byte, the CPU time of long answers against a plain copy, and the memory of
//! streams and connections that are open.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream as Stream};
use tollgate_bench::process::cpu_micros;
use tollgate_bench::table::{Bar, median};
use tollgate_rig::{Stopwatch, raise_open_files};

use super::{Bars, NO_RULES, gateway, nginx};
use crate::length::Length;
use crate::server::{Scratch, Server};

const FIRST_BYTE_MILLIS: Bar = Bar::AtMost(1.0);
const COPY_CPU: Bar = Bar::AtMost(1.1);
const STREAM_BYTES: Bar = Bar::AtMost(40.0 * 1024.0);

/// From how many addresses streams are opened.
const CLIENTS: u32 = 8;
const MEGABYTE: usize = 1 << 20;
/// The most bytes that a plain copy reads at once.
const PART: usize = 64 * 1024;
const REQUEST: &[u8] = b"GET /long HTTP/1.1\r\nHost: bench\r\n\r\n";

/// Copies bytes between clients and a server: the least that a proxy can do.
#[derive(Args)]
pub(crate) struct Copy {
    listen: SocketAddr,
    to: SocketAddr,
}

/// Begins an answer to each request, and never ends it.
#[derive(Args)]
pub(crate) struct Hold {
    listen: SocketAddr,
}

impl Copy {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let to = self.to;
        accept(self.listen, move |mut client| async move {
            let mut server = Stream::connect(to).await?;
            server.set_nodelay(true)?;
            // Parts as large as those of the gateway.
            copy_bidirectional_with_sizes(&mut client, &mut server, PART, PART).await?;
            Ok(())
        })
    }
}

impl Hold {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        accept(self.listen, |mut client| async move {
            let mut part = [0; 4096];
            if client.read(&mut part).await? == 0 {
                return Ok(());
            }
            let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
            client.write_all(head).await?;
            // Until the gateway closes.
            while client.read(&mut part).await? > 0 {}
            Ok(())
        })
    }
}

/// Runs `serve` for each connection, for ever.
fn accept<F>(
    listen: SocketAddr,
    serve: impl Fn(Stream) -> F + Clone + Send + 'static,
) -> Result<(), Box<dyn Error>>
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(serve(stream));
        }
    })
}

/// Starts this program again, as one of its servers.
fn own(name: &'static str, command: &str, more: &[String]) -> Result<Server, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    Server::start(name, |address| {
        let mut own = Command::new(program);
        own.arg(command).arg(address.to_string()).args(more);
        own
    })
}

pub(super) fn first_byte(
    bars: &mut Bars,
    direct: SocketAddr,
    proxied: SocketAddr,
    length: Length,
) -> Result<(), Box<dyn Error>> {
    let requests = length.pick(100, 2000, 5000);
    let (mut direct, mut proxied) = (Asked::connect(direct)?, Asked::connect(proxied)?);
    // In turn, so that whatever disturbs the machine disturbs both.
    for _ in 0..requests {
        direct.ask()?;
        proxied.ask()?;
    }
    let added = proxied.p99_millis() - direct.p99_millis();
    let what = "ms that the first byte comes later at p99";
    bars.add(what, FIRST_BYTE_MILLIS, added);
    Ok(())
}

/// A connection, and the times from each request to the first byte of its answer, in milliseconds.
struct Asked {
    stream: TcpStream,
    answer: Vec<u8>,
    times: Vec<f64>,
}

impl Asked {
    fn connect(address: SocketAddr) -> Result<Asked, Box<dyn Error>> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Asked {
            stream,
            answer: Vec::new(),
            times: Vec::new(),
        })
    }

    fn ask(&mut self) -> Result<(), Box<dyn Error>> {
        let mut part = [0; 4096];
        self.answer.clear();
        let started = Stopwatch::start();
        self.stream
            .write_all(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n")?;
        loop {
            let read = self.stream.read(&mut part)?;
            if read == 0 {
                return Err("the connection was closed".into());
            }
            if self.answer.is_empty() {
                self.times.push(started.elapsed().as_secs_f64() * 1e3);
            }
            self.answer.extend_from_slice(&part[..read]);
            let head = self.answer.windows(4).position(|it| it == b"\r\n\r\n");
            if head.is_some_and(|head| self.answer.len() >= head + 4 + 1024) {
                return Ok(());
            }
        }
    }

    fn p99_millis(mut self) -> f64 {
        self.times.sort_by(f64::total_cmp);
        let last = self.times.len().saturating_sub(1);
        let p99 = self.times.get((self.times.len() * 99 / 100).min(last));
        p99.copied().unwrap_or(f64::NAN)
    }
}

/// The CPU time of a long answer, against a plain copy of its bytes.
pub(super) fn long_answers(
    bars: &mut Bars,
    program: &Path,
    scratch: &Scratch,
    length: Length,
) -> Result<(), Box<dyn Error>> {
    let (megabytes, rounds) = length.pick((10, 1), (400, 5), (800, 9));
    let pages = scratch.directory("pages")?;
    std::fs::write(pages.join("long"), vec![b'x'; megabytes * MEGABYTE])?;
    let root = pages.display().to_string();
    let upstream = nginx(scratch, "long", |address| {
        format!("server {{ listen {address}; root {root}; }}")
    })?;
    let behind = upstream.address();
    let copy = own("a plain copy", "copy", &[behind.to_string()])?;
    let gateway = gateway(program, scratch, "gateway", NO_RULES, behind)?;
    let mut times: [Vec<f64>; 2] = Default::default();
    for _ in 0..rounds {
        for (server, times) in [&copy, &gateway].iter().zip(&mut times) {
            let before = cpu_micros(server.id())?;
            read_long(server.address(), megabytes * MEGABYTE)?;
            times.push((cpu_micros(server.id())? - before) / megabytes as f64);
        }
    }
    let [copied, passed] = times.map(median);
    let what = format!(
        "CPU of a long answer ({passed:.0} us a MB) against a plain copy ({copied:.0} us a MB)"
    );
    bars.add(&what, COPY_CPU, passed / copied);
    Ok(())
}

/// Reads an answer with a body of `length` bytes.
fn read_long(address: SocketAddr, length: usize) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(REQUEST)?;
    let mut part = vec![0; 256 * 1024];
    let mut read = 0;
    while read < length {
        match stream.read(&mut part)? {
            0 => return Err(format!("the answer ended after {read} bytes").into()),
            more => read += more,
        }
    }
    Ok(())
}

/// The memory of open streams, and of connections without a request.
pub(super) fn memory(
    bars: &mut Bars,
    program: &Path,
    scratch: &Scratch,
    length: Length,
) -> Result<(), Box<dyn Error>> {
    // As many as a door accepts. The servers inherit the limit of open files.
    let most = length.pick(100, 10_000, 10_000);
    let files = raise_open_files(2 * u64::from(most) + 1000)?;
    let files = u32::try_from(files).unwrap_or(u32::MAX).saturating_sub(200);
    let upstream = own("streams", "hold", &[])?;
    // A stream has two connections at the gateway.
    for (what, request, streams) in [
        ("open streams", Some(REQUEST), most.min(files / 2)),
        ("idle connections", None, most.min(files)),
    ] {
        let gateway = gateway(program, scratch, "gateway", NO_RULES, upstream.address())?;
        let open = |count: u32| -> Result<Vec<TcpStream>, Box<dyn Error>> {
            let opened = (0..count).map(|number| open(gateway.address(), number, request));
            opened.collect()
        };
        let _first = open(10)?;
        let before = gateway.resident_bytes()?;
        let counted = streams - 11;
        let _opened = open(counted)?;
        // The gateway has accepted all connections when it answers on a later one.
        let _last = self::open(gateway.address(), 0, Some(REQUEST))?;
        let bytes = (gateway.resident_bytes()? - before) / f64::from(counted);
        bars.add(
            &format!("bytes of each of {streams} {what}"),
            STREAM_BYTES,
            bytes,
        );
    }
    Ok(())
}

/// Opens a connection from one of several loopback addresses, because a client gets only a part of the connections to an
/// upstream. If there is a `request`, waits for the beginning of its answer, which must be a 200.
fn open(
    server: SocketAddr,
    number: u32,
    request: Option<&[u8]>,
) -> Result<TcpStream, Box<dyn Error>> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let client = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + number % CLIENTS);
    socket.bind(&SocketAddr::from((client, 0)).into())?;
    socket.connect(&server.into())?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    if let Some(request) = request {
        stream.write_all(request)?;
        let mut start = [0; 16];
        stream.read_exact(&mut start)?;
        if !start.starts_with(b"HTTP/1.1 200") {
            return Err(format!("stream {number} was answered {}", start.escape_ascii()).into());
        }
    }
    Ok(stream)
}
