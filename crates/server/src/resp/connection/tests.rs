//! Timeouts of a connection, on a clock that moves when every task waits.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tokio::io::{DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate::Engine;
use tollgate_config::Secret;

use super::*;
use crate::net::{LAST_CALL, MAX_HELD, Memory, Stage};
use crate::resp::door::{Door, Options};

const IDLE: Duration = Duration::from_secs(60);
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Client {
    stream: DuplexStream,
    stop: watch::Sender<Stage>,
    served: JoinHandle<io::Result<End>>,
    started: Instant,
}

impl Client {
    /// Connects a client. The connection buffers `holds` bytes.
    fn new(password: Option<&str>, holds: usize) -> Client {
        Client::at(&Memory::default(), password, holds)
    }

    /// Connects a client to a door whose clients hold `memory`.
    fn at(memory: &Memory, password: Option<&str>, holds: usize) -> Client {
        let rules =
            "version: 1\nrules: [{ id: all, algorithm: fixed-window, limit: 1, window: 1s }]";
        let engine = Engine::from_yaml("rules.yaml", rules).unwrap();
        let options = Options {
            password: password.map(|it| Secret::new(it.to_owned())),
            ..Options::default()
        };
        let door = Door::new(Arc::new(engine), &options);
        let (stream, theirs) = duplex(holds);
        let (stop, stopping) = Stopping::channel();
        let served = serve(
            Stream::new(theirs, None),
            door.conversation(),
            memory.account(PEER),
            IDLE,
            stopping,
        );
        Client {
            stream,
            stop,
            served: tokio::spawn(served),
            started: Instant::now(),
        }
    }

    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads all answers until the connection ends.
    async fn rest(&mut self) -> String {
        let mut answers = String::new();
        self.stream.read_to_string(&mut answers).await.unwrap();
        answers
    }

    async fn expect(&mut self, answer: &str) {
        let mut bytes = vec![0; answer.len()];
        self.stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), answer);
    }

    /// Checks that the server cuts the client off this long after its start.
    async fn ends_after(self, time: Duration) {
        let (end, seconds) = self.end().await;
        assert_eq!((end.unwrap(), seconds), (End::Silent, time.as_secs()));
    }

    /// Waits until the connection ends. Returns how it ended, and after how many seconds.
    async fn end(self) -> (io::Result<End>, u64) {
        let served = self.served.await.unwrap();
        (served, self.started.elapsed().as_secs())
    }
}

#[tokio::test(start_paused = true)]
async fn silent_client_is_cut_off() {
    let client = Client::new(None, 1024);
    client.ends_after(IDLE).await;
}

#[tokio::test(start_paused = true)]
async fn active_client_stays_connected() {
    let mut client = Client::new(None, 1024);
    for _ in 0..10 {
        tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
        client.send("PING\r\n").await;
        client.expect("+PONG\r\n").await;
    }
    let talked = client.started.elapsed().as_secs();
    let (end, seconds) = client.end().await;
    assert_eq!(end.unwrap(), End::Silent);
    let silent = seconds - talked;
    assert!((60..=120).contains(&silent), "cut off after {silent} s");
}

#[tokio::test(start_paused = true)]
async fn slow_command_is_cut_off() {
    let mut client = Client::new(None, 1024);
    for byte in ["*", "1", "\r", "\n", "$", "4", "\r", "\n", "P"] {
        client.send(byte).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    client.ends_after(COMMAND_TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_log_in_is_cut_off() {
    let mut client = Client::new(Some("secret"), 1024);
    for _ in 0..9 {
        client.send("PING\r\n").await;
        client.expect("-NOAUTH Authentication required.\r\n").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    client.ends_after(COMMAND_TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn client_that_logged_in_may_be_silent_for_longer() {
    let mut client = Client::new(Some("secret"), 1024);
    client.send("AUTH secret\r\n").await;
    client.expect("+OK\r\n").await;
    let (end, seconds) = client.end().await;
    assert_eq!(end.unwrap(), End::Silent);
    assert!(seconds >= IDLE.as_secs(), "cut off after {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_answers_is_cut_off() {
    let mut client = Client::new(None, 1024);
    let echo = format!("ECHO {}\r\n", "x".repeat(900));
    client.send(&echo.repeat(3)).await;
    let (end, seconds) = client.end().await;
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(seconds, READ_TIMEOUT.as_secs());
}

/// Unread answers of all clients together have a bound. At the bound, clients that read their answers are served, and
/// others are cut off at once.
#[tokio::test(start_paused = true)]
async fn unread_answers_count_as_memory_of_the_door() {
    let memory = Memory::default();
    let long = format!("COMMAND DOCS{}\r\n", " ECHO".repeat(120));
    for is_full in [false, true] {
        let before = memory
            .account(PEER)
            .charge(if is_full { 2 * MAX_HELD } else { 0 });
        let mut reader = Client::at(&memory, None, 64 * 1024);
        let mut other = Client::at(&memory, None, 64 * 1024);
        let sent = long.repeat(200);
        // The server stops reading while its answers are not read.
        let sending = timeout(
            Duration::from_secs(1),
            other.stream.write_all(sent.as_bytes()),
        );
        assert!(sending.await.is_err() || is_full);
        reader.send("PING\r\n").await;
        reader.expect("+PONG\r\n").await;
        let (end, seconds) = other.end().await;
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let patience = if is_full { 0 } else { READ_TIMEOUT.as_secs() };
        assert_eq!(seconds, patience);
        drop(before);
    }
}

#[tokio::test(start_paused = true)]
async fn idle_client_is_cut_off_after_the_last_call() {
    let mut client = Client::new(None, 1024);
    client.send("PING\r\n").await;
    client.expect("+PONG\r\n").await;
    client.stop.send_replace(Stage::Draining);
    client.send("PING\r\n").await;
    client.expect("+PONG\r\n").await;
    client.stop.send_replace(Stage::Stopping);
    let stopped = Instant::now();
    assert_eq!(client.rest().await, "");
    assert_eq!(
        stopped.elapsed().as_millis() / 10,
        LAST_CALL.as_millis() / 10
    );
    assert_eq!(client.end().await.0.unwrap(), End::Stop);
}

#[tokio::test(start_paused = true)]
async fn commands_that_have_begun_to_arrive_are_answered_when_the_server_stops() {
    let mut client = Client::new(None, 64 * 1024);
    client.send(&"PING\r\n".repeat(500)).await;
    client.send("*1\r\n$4\r\nPI").await;
    client.expect(&"+PONG\r\n".repeat(500)).await;
    client.stop.send_replace(Stage::Stopping);
    tokio::time::sleep(COMMAND_TIMEOUT / 2).await;
    client.send("NG\r\nPING\r\n").await;
    assert_eq!(client.rest().await, "+PONG\r\n+PONG\r\n");
    drop(client.stream);
    assert_eq!(client.served.await.unwrap().unwrap(), End::Stop);
}

#[tokio::test(start_paused = true)]
async fn last_command_ends_the_connection_when_the_server_stops() {
    let mut client = Client::new(None, 64 * 1024);
    client.stop.send_replace(Stage::Stopping);
    client.send("PING\r\n").await;
    assert_eq!(client.rest().await, "+PONG\r\n");
    drop(client.stream);
    assert_eq!(client.served.await.unwrap().unwrap(), End::Stop);
}

#[tokio::test(start_paused = true)]
async fn client_that_breaks_the_protocol_can_read_the_error() {
    let mut client = Client::new(None, 64 * 1024);
    client.send("PING\r\n*1\r\n*1\r\n").await;
    client.send(&"more of it\r\n".repeat(1000)).await;
    let answers = "+PONG\r\n-ERR Protocol error: expected '$', got '*'\r\n";
    assert_eq!(client.rest().await, answers);
    drop(client.stream);
    assert_eq!(client.served.await.unwrap().unwrap(), End::Cut);
}

#[tokio::test(start_paused = true)]
async fn client_that_guesses_passwords_is_cut_off() {
    let mut client = Client::new(Some("secret"), 64 * 1024);
    client.send(&"AUTH wrong\r\n".repeat(100)).await;
    assert_eq!(client.rest().await.matches("-WRONGPASS ").count(), 8);
    drop(client.stream);
    assert_eq!(client.served.await.unwrap().unwrap(), End::Cut);
}
