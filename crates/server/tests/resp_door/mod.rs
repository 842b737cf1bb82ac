//! A RESP door on a free port, and ways to talk to it.

#![allow(dead_code)] // Each test file uses only a part.
#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_rig::Resp;
use tollgate_server::net::Listener;
use tollgate_server::resp::{self, Options};
use tollgate_server::tls::Tls;

/// Rules for every kind of answer.
pub(crate) const RULES: &str = "
version: 1
rules:
  - { id: api, match: { action: search }, per: [user], algorithm: gcra, rate: 3/h, burst: 3 }
  - { id: login, match: { action: login }, per: [user], algorithm: fixed-window, limit: 2, window: 1d }
  - { id: mail, match: { action: mail }, algorithm: leaky-bucket, rate: 1/m, queue: 2, shape: true }
  - { id: must, match: { action: pay }, per: [user], missing: deny, algorithm: sliding-log, limit: 9, window: 1m }
";

pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<Engine>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    pub(crate) fn start() -> Door {
        Door::with(RULES, Options::default(), None)
    }

    pub(crate) fn with(yaml: &str, options: Options, tls: Option<Arc<Tls>>) -> Door {
        let config = tollgate_config::parse("rules.yaml", yaml, &|_| None).unwrap();
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async move {
                let any = SocketAddr::from(([127, 0, 0, 1], 0));
                let engine = Arc::new(Engine::start(&config).await.unwrap());
                let listener = Listener::bind(any, tls).await.unwrap();
                let address = listener.local_addr().unwrap();
                tell.send((address, Arc::clone(&engine))).unwrap();
                resp::serve(listener, engine, options, async {
                    drop(stopped.await);
                    Duration::ZERO
                })
                .await;
            });
        });
        let (address, engine) = told.recv().unwrap();
        Door {
            address,
            engine,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Tells the server to stop. The server still answers the commands it has read.
    pub(crate) fn stop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the server has ended.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    pub(crate) fn client(&self) -> Resp {
        Resp::connect(&self.address.to_string()).unwrap()
    }

    /// Sends `bytes` as they are, and returns the answer until the server closes.
    pub(crate) fn raw(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect();
        // The server may close before it has read everything, but after its answer.
        let _ = stream.write_all(bytes.as_ref());
        read_all(stream)
    }

    /// Sends some lines, and returns the answer to them.
    pub(crate) fn lines(&self, lines: &str) -> String {
        let quit = format!("{lines}\r\nQUIT\r\n");
        let answer = self.raw(quit);
        let answer = answer.strip_suffix("+OK\r\n");
        answer
            .unwrap_or_else(|| panic!("no answer to QUIT"))
            .to_owned()
    }

    /// Runs `redis-cli` with these arguments, and returns its output.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        run(Command::new("redis-cli")
            .args(["-p", &self.address.port().to_string()])
            .args(args))
    }

    /// Checks that the server goes on.
    pub(crate) fn still_serves(&self) {
        assert_eq!(self.lines("PING"), "+PONG\r\n");
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn read_all(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Encodes a command as clients send it.
pub(crate) fn command(args: &[&str]) -> String {
    let args = args
        .iter()
        .map(|arg| format!("${}\r\n{arg}\r\n", arg.len()));
    let args: Vec<String> = args.collect();
    format!("*{}\r\n{}", args.len(), args.concat())
}

/// Runs a program, which must succeed, and returns its output.
pub(crate) fn run(program: &mut Command) -> String {
    let output = program.output().unwrap_or_else(|error| {
        let install = "install: apt-get install -y redis-tools";
        panic!("cannot run {program:?}: {error}\n    {install}")
    });
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}\n{printed}{complaint}");
    printed
}
