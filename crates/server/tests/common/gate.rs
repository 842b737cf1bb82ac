//! A gateway on a free port, and upstreams that do what a test says.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_rig::wait;
use tollgate_server::{ControlPlane, Doors};

/// How long a test waits for something that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A running gateway.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) control: Arc<ControlPlane>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    /// Starts a gateway. `more` has the rules and everything else but the addresses and the version.
    pub(crate) fn start(more: &str) -> Gate {
        Gate::start_with("gateway: \"127.0.0.1:0\"", more)
    }

    /// Starts a gateway whose door is described by `door`.
    pub(crate) fn start_with(door: &str, more: &str) -> Gate {
        let yaml = format!("version: 1\nserver: {{ http: \"127.0.0.1:0\", {door} }}\n{more}");
        Gate::of(&yaml)
    }

    /// Starts a gateway with this config. The HTTP door takes a free port.
    pub(crate) fn of(yaml: &str) -> Gate {
        let mut config = tollgate_config::parse("rules.yaml", yaml, &|_| None)
            .unwrap_or_else(|error| panic!("{error}"));
        config.server.http.address.set_port(0);
        Gate::of_config(config)
    }

    /// Starts a gateway with this config.
    pub(crate) fn of_config(config: tollgate_config::Config) -> Gate {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async move {
                let engine = Arc::new(Engine::start(&config).await.unwrap());
                let doors = Doors::open(&config).await.unwrap();
                let addresses = doors.addresses().unwrap();
                let of = |door| addresses.iter().find(|it| it.door == door).unwrap().address;
                let control = Arc::new(ControlPlane::of(engine));
                tell.send((of("gateway"), of("http"), Arc::clone(&control)))
                    .unwrap();
                let stop = async {
                    drop(stopped.await);
                    Duration::ZERO
                };
                doors.serve(control, stop).await;
            });
        });
        let (address, http, control) = told.recv().unwrap();
        Gate {
            address,
            http,
            control,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Tells the gateway to stop. Open requests go on.
    pub(crate) fn stop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the gateway has ended.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    pub(crate) fn get(&self, path: &str) -> super::Answer {
        self.get_with(path, &[])
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> super::Answer {
        super::get(&format!("http://{}{path}", self.address), headers)
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> super::Answer {
        super::post(&format!("http://{}{path}", self.address), body, &[])
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// Sends `bytes` as they are, and returns what comes back until the gateway closes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The gateway may close before it has read everything, but after its answer.
        let _ = stream.write_all(bytes);
        super::read_all(stream)
    }

    /// Returns the value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = super::get(&format!("http://{}/metrics", self.http), &[]).text;
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|rest| rest.rsplit(' ').next());
        value
            .unwrap_or_else(|| panic!("{name} in\n{page}"))
            .parse()
            .unwrap()
    }

    /// Waits until no request is open, and none holds a slot, here and in the store.
    pub(crate) fn wait_for_no_slots(&self) {
        self.wait_for_slots(0, 0);
    }

    /// Waits until as many requests are open here as hold slots here, and until rules without `per` have this many
    /// `holders` in the store.
    pub(crate) fn wait_for_slots(&self, open: u64, holders: usize) {
        let attributes = tollgate::Attributes::default();
        let engine = self.control.engine();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut seen = String::new();
        let settled = wait::at_most(SOON, || {
            let here = self.metric("tollgate_gateway_slots ");
            let requests = self.metric("tollgate_upstream_open_requests");
            let held = runtime.block_on(engine.holders(&attributes));
            let held = held.map(|all| all.iter().map(|it| it.holders.len()).sum::<usize>());
            seen = format!("{here} slots, {requests} open requests, {held:?} holders");
            let is_settled =
                here == open && requests == open && matches!(held, Ok(it) if it == holders);
            is_settled.then_some(())
        });
        assert!(
            settled.is_some(),
            "{open} requests and {holders} holders are expected: {seen}"
        );
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A server that runs a function for each connection.
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) requests: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A request as an upstream reads it.
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    /// Returns the values of a header.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1);
        let pairs = lines.filter_map(|line| line.split_once(": "));
        pairs
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }
}

impl Script {
    /// Runs `serve` for each connection, on a thread of its own.
    pub(crate) fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Script {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, count): (_, Arc<AtomicUsize>) = (Arc::clone(&stop), Arc::clone(&connections));
        let serve = Arc::new(serve);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                count.fetch_add(1, Ordering::Relaxed);
                let (serve, stream) = (Arc::clone(&serve), stream.unwrap());
                std::thread::spawn(move || serve(stream));
            }
        });
        Script {
            address,
            connections,
            requests: Arc::default(),
            stop,
            thread: Some(thread),
        }
    }

    /// Answers each request with `answer`, and keeps connections open.
    pub(crate) fn answering(answer: impl Fn(&Seen) -> String + Send + Sync + 'static) -> Script {
        let requests: Arc<AtomicUsize> = Arc::default();
        let counted = Arc::clone(&requests);
        let mut script = Script::start(move |stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while let Some(seen) = read_request(&mut reader) {
                counted.fetch_add(1, Ordering::Relaxed);
                if (&stream).write_all(answer(&seen).as_bytes()).is_err() {
                    return;
                }
            }
        });
        script.requests = requests;
        script
    }

    /// Answers each request with its head and body.
    pub(crate) fn echo() -> Script {
        Script::answering(|seen| {
            let text = format!("{}{}", seen.head, String::from_utf8_lossy(&seen.body));
            ok(&text)
        })
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns an `upstreams` section with only this server, and `more` settings.
    pub(crate) fn section(&self, more: &str) -> String {
        format!(
            "upstreams: {{ app: {{ servers: [\"http://{}\"]{more} }} }}\n",
            self.address
        )
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Returns an answer with this text.
pub(crate) fn ok(text: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    )
}

/// Reads a request strictly: a body has either a length or chunks. `None` at the end of the connection.
pub(crate) fn read_request(reader: &mut impl BufRead) -> Option<Seen> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        match reader.read_line(&mut head) {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
    let mut seen = Seen {
        head,
        body: Vec::new(),
    };
    let (lengths, codings) = (
        seen.header("content-length").join(","),
        seen.header("transfer-encoding").join(","),
    );
    assert!(
        lengths.is_empty() || codings.is_empty(),
        "two lengths: {}",
        seen.head
    );
    if !lengths.is_empty() {
        let mut body = vec![0; lengths.parse().unwrap()];
        reader.read_exact(&mut body).ok()?;
        seen.body = body;
    } else if !codings.is_empty() {
        assert_eq!(codings, "chunked");
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let size = usize::from_str_radix(line.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            seen.body.extend_from_slice(&chunk[..size]);
        }
    }
    Some(seen)
}
