use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use serde_json::Value;
use sha2::Sha256;
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;
use tollgate::{Ask, Attributes};

use super::*;
use crate::outbound;

const SECRET: &str = "0123456789abcdef";

/// Short waits between attempts, and a generous time for the end.
const QUICK: Pacing = Pacing {
    first: Duration::from_millis(1),
    most: Duration::from_millis(4),
    stop: PATIENCE,
};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The timeout of a message in tests where the receiver hangs once. The other messages must be
/// answered within it as well.
const HANGING: Duration = Duration::from_secs(3);

/// How a receiver treats a message.
#[derive(Clone, Copy)]
enum Reply {
    Say(u16),
    Hang,
}

struct Message {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// A receiver that follows a script, and then accepts every message.
struct Receiver {
    address: SocketAddr,
    messages: mpsc::UnboundedReceiver<Message>,
    task: JoinHandle<()>,
}

impl Receiver {
    async fn start(replies: &[Reply]) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Receiver::on(listener, replies, None)
    }

    fn on(listener: TcpListener, replies: &[Reply], tls: Option<TlsAcceptor>) -> Receiver {
        let address = listener.local_addr().unwrap();
        let (sender, messages) = mpsc::unbounded_channel();
        let mut replies = VecDeque::from(replies.to_vec());
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                match &tls {
                    None => serve(stream, sender.clone(), replies.pop_front()),
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => serve(stream, sender.clone(), replies.pop_front()),
                        Err(_) => continue,
                    },
                }
            }
        });
        Receiver {
            address,
            messages,
            task,
        }
    }

    /// Waits for the next message, and checks its signature.
    async fn next(&mut self) -> Message {
        let message = tokio::time::timeout(PATIENCE, self.messages.recv()).await;
        let message = message.unwrap().unwrap();
        assert_eq!(message.method, Method::POST);
        assert_eq!(message.path, "/hook?token=x");
        assert_eq!(message.headers["content-type"], "application/json");
        let signature = message.headers[SIGNATURE].to_str().unwrap();
        let (t, v1) = signature.split_once(",v1=").unwrap();
        let t = t.strip_prefix("t=").unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(format!("{t}.").as_bytes());
        mac.update(&message.body);
        let bytes = mac.finalize().into_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(v1, hex);
        message
    }

    /// Drops all messages that no test has read, and returns how many there were.
    fn unread(&mut self) -> usize {
        let mut count = 0;
        while self.messages.try_recv().is_ok() {
            count += 1;
        }
        count
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves one connection with one message.
fn serve(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    sender: mpsc::UnboundedSender<Message>,
    reply: Option<Reply>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let sender = sender.clone();
        async move {
            let (parts, body) = request.into_parts();
            let message = Message {
                method: parts.method,
                path: parts.uri.to_string(),
                headers: parts.headers,
                body: body.collect().await.unwrap().to_bytes(),
            };
            let _ = sender.send(message);
            let status = match reply.unwrap_or(Reply::Say(204)) {
                Reply::Hang => std::future::pending().await,
                Reply::Say(status) => status,
            };
            let body = Bytes::from_static(b"an answer that nobody reads");
            let answer = Response::builder()
                .status(status)
                .header("location", "http://127.0.0.1:1/")
                .body(Full::new(body));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    tokio::spawn(async move {
        // The sender closes the connection after its timeout.
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
}

struct Setup {
    engine: Engine,
    webhook: Webhook,
}

impl Setup {
    fn new(address: SocketAddr, attempts: u32) -> Setup {
        Setup::waiting(address, attempts, PATIENCE, PATIENCE)
    }

    /// Starts a setup in which a message has this `timeout`, and the server waits this long at the
    /// `stop`.
    fn waiting(address: SocketAddr, attempts: u32, timeout: Duration, stop: Duration) -> Setup {
        let peer = Peer::new("127.0.0.1", address.port(), false).unwrap();
        Setup::with(peer, address, attempts, "http", timeout, stop)
    }

    fn with(
        peer: Peer,
        address: SocketAddr,
        attempts: u32,
        scheme: &str,
        timeout: Duration,
        stop: Duration,
    ) -> Setup {
        let (port, timeout) = (address.port(), timeout.as_millis());
        let yaml = format!(
            "version: 1\nevents: {{ near_limit: [80], webhook: {{ url: '{scheme}://127.0.0.1:{port}/hook?token=x', \
             secret: {SECRET}, timeout: {timeout}ms, attempts: {attempts} }} }}\n\
             rules:\n- {{ id: yearly, per: [tenant], algorithm: quota, limit: 10, period: year }}\n"
        );
        let engine = Engine::from_yaml("rules.yaml", &yaml).unwrap();
        let live = engine.active();
        let config = live.config().events.webhook.as_ref().unwrap();
        let webhook = Webhook::start_with(&live, config, peer, Pacing { stop, ..QUICK }).unwrap();
        Setup { engine, webhook }
    }

    /// Brings a tenant near its limit.
    async fn near(&self, tenant: &str) {
        let attributes = Attributes::from([("tenant", tenant), ("action", "search")]);
        let decision = self.engine.ask(&attributes, Ask::Exactly(8)).await;
        assert!(decision.is_allowed());
    }

    /// Waits until no event waits to be sent.
    async fn settled(&self) {
        let settling = async {
            while self.webhook.queue_length() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, settling).await.unwrap();
    }

    /// Returns how many events had each result, without zeros.
    fn ended(&self) -> Vec<(&'static str, u64)> {
        let all = self.webhook.deliveries();
        all.filter(|(_, count)| *count > 0).collect()
    }
}

fn tenant(message: &Message) -> String {
    let body: Value = serde_json::from_slice(&message.body).unwrap();
    body["data"]["tenant"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn message_has_the_fields_of_the_event() {
    let mut receiver = Receiver::start(&[]).await;
    let setup = Setup::new(receiver.address, 8);
    let seen: Arc<Mutex<Option<Arc<Event>>>> = Arc::default();
    let last = Arc::clone(&seen);
    let live = setup.engine.active();
    live.events()
        .listen(move |event| *last.lock() = Some(Arc::clone(event)));
    setup.near("acme").await;
    let event = seen.lock().take().unwrap();
    let message = receiver.next().await;
    assert_eq!(message.headers[EVENT_ID], event.id.to_string());
    assert_eq!(message.headers["host"], receiver.address.to_string());
    let body: Value = serde_json::from_slice(&message.body).unwrap();
    let expected = serde_json::json!({
        "type": "quota.near_limit",
        "id": event.id.to_string(),
        "time": crate::audit::instant(event.at),
        "data": {
            "kind": "near_limit",
            "rule": "yearly",
            "tenant": "acme",
            "action": "search",
            "subject": event.subject.to_string(),
            "threshold": 80,
            "used": 8,
            "limit": 10,
            "grace": 0,
            "periodStart": crate::audit::instant(event.period.start),
            "periodEnd": crate::audit::instant(event.period.end),
        }
    });
    assert_eq!(body, expected);
    setup.settled().await;
    assert_eq!(setup.ended(), [("delivered", 1)]);
}

#[tokio::test]
async fn events_arrive_in_order_at_a_receiver_that_fails_first() {
    let [fails, is_busy, is_late] = [500, 429, 408].map(Reply::Say);
    let replies = [fails, is_busy, Reply::Hang, is_late];
    let mut receiver = Receiver::start(&replies).await;
    let setup = Setup::waiting(receiver.address, 8, HANGING, PATIENCE);
    setup.near("first").await;
    setup.near("second").await;
    let mut ids = Vec::new();
    let mut bodies = Vec::new();
    for _ in 0..5 {
        let message = receiver.next().await;
        assert_eq!(tenant(&message), "first");
        ids.push(message.headers[EVENT_ID].clone());
        bodies.push(message.body);
    }
    ids.dedup();
    bodies.dedup();
    let lengths = (ids.len(), bodies.len());
    assert_eq!(lengths, (1, 1), "the same event every time");
    assert_eq!(tenant(&receiver.next().await), "second");
    setup.settled().await;
    assert_eq!(setup.ended(), [("delivered", 2)]);
}

#[tokio::test]
async fn rejection_and_redirect_are_final() {
    let mut receiver = Receiver::start(&[Reply::Say(400), Reply::Say(307)]).await;
    let setup = Setup::new(receiver.address, 8);
    for name in ["first", "second", "third"] {
        setup.near(name).await;
        assert_eq!(tenant(&receiver.next().await), name);
    }
    setup.settled().await;
    assert_eq!(setup.ended(), [("delivered", 1), ("refused", 2)]);
    assert_eq!(receiver.unread(), 0);
}

#[tokio::test]
async fn event_is_given_up_after_its_attempts() {
    let mut receiver = Receiver::start(&[Reply::Say(503); 3]).await;
    let setup = Setup::new(receiver.address, 3);
    setup.near("first").await;
    setup.near("second").await;
    setup.settled().await;
    assert_eq!(setup.ended(), [("delivered", 1), ("failed", 1)]);
    assert_eq!(receiver.unread(), 4);
}

#[tokio::test]
async fn receiver_that_is_down_costs_events_but_no_decision() {
    // The port is reserved, but nobody listens yet.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    let setup = Setup::new(address, 2);
    setup.near("first").await;
    setup.settled().await;
    assert_eq!(setup.ended(), [("failed", 1)]);
    let mut receiver = Receiver::on(socket.listen(16).unwrap(), &[], None);
    setup.near("second").await;
    assert_eq!(tenant(&receiver.next().await), "second");
    setup.settled().await;
    assert_eq!(setup.ended(), [("delivered", 1), ("failed", 1)]);
}

#[tokio::test]
async fn events_beyond_the_queue_are_dropped_and_counted() {
    let mut receiver = Receiver::start(&[Reply::Hang]).await;
    let setup = Setup::waiting(receiver.address, 1, HANGING, PATIENCE);
    setup.near("first").await;
    // The first event has left the queue, and is being sent.
    receiver.next().await;
    for it in 0..MAX_QUEUE + 7 {
        setup.near(&format!("tenant{it}")).await;
    }
    assert_eq!(setup.ended(), [("dropped", 7)]);
    assert_eq!(setup.webhook.queue_length(), MAX_QUEUE as u64 + 1);
    setup.settled().await;
    let delivered = ("delivered", MAX_QUEUE as u64);
    assert_eq!(setup.ended(), [delivered, ("failed", 1), ("dropped", 7)]);
}

#[tokio::test]
async fn server_that_stops_delivers_waiting_events() {
    let mut receiver = Receiver::start(&[]).await;
    let setup = Setup::new(receiver.address, 8);
    for name in ["first", "second", "third"] {
        setup.near(name).await;
    }
    setup.webhook.stop().await;
    assert_eq!(setup.ended(), [("delivered", 3)]);
    assert_eq!(receiver.unread(), 3);
    setup.near("late").await;
    assert_eq!(setup.ended(), [("delivered", 3), ("dropped", 1)]);
    setup.webhook.stop().await;
}

#[tokio::test]
async fn events_that_miss_the_deadline_are_undelivered() {
    let mut receiver = Receiver::start(&[Reply::Hang; 9]).await;
    let soon = Duration::from_millis(100);
    let setup = Setup::waiting(receiver.address, 8, PATIENCE, soon);
    for name in ["first", "second", "third"] {
        setup.near(name).await;
    }
    receiver.next().await;
    setup.webhook.stop().await;
    assert_eq!(setup.ended(), [("undelivered", 3)]);
    assert_eq!(setup.webhook.queue_length(), 0);
}

#[tokio::test]
async fn https_receiver_must_prove_its_identity() {
    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = key.cert.der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.clone()],
            key.signing_key.serialize_der().try_into().unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut receiver = Receiver::on(listener, &[], Some(acceptor));
    let port = receiver.address.port();

    let nobody = outbound::tls(RootCertStore::empty()).unwrap();
    let peer = Peer::with_tls("127.0.0.1", port, Some(nobody)).unwrap();
    let distrustful = Setup::with(peer, receiver.address, 2, "https", PATIENCE, PATIENCE);
    distrustful.near("acme").await;
    distrustful.settled().await;
    assert_eq!(distrustful.ended(), [("failed", 1)]);
    assert_eq!(receiver.unread(), 0);

    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let peer = Peer::with_tls("127.0.0.1", port, Some(outbound::tls(roots).unwrap())).unwrap();
    let setup = Setup::with(peer, receiver.address, 2, "https", PATIENCE, PATIENCE);
    setup.near("acme").await;
    assert_eq!(tenant(&receiver.next().await), "acme");
    setup.settled().await;
    assert_eq!(setup.ended(), [("delivered", 1)]);
}
