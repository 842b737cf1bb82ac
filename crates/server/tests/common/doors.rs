//! A server with every door that clients use.

#![allow(dead_code)] // Each test file uses only a part.
#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};

pub(crate) struct Server {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) engine: Arc<Engine>,
    _stop: oneshot::Sender<()>,
}

impl Server {
    /// Starts a server with these rules. The namespace separates its state from that of other tests
    /// in the same Redis.
    pub(crate) async fn start(rules: &str, store: &str, namespace: &str) -> Server {
        let yaml = format!(
            "version: 1\nnamespace: {namespace}\nstore: {store}\n\
             subjects: {{ hash_secret: 0123456789abcdef, trusted_proxies: [127.0.0.0/8] }}\n\
             server: {{ http: \"127.0.0.1:0\", grpc: \"127.0.0.1:0\", resp: \"127.0.0.1:0\" }}\n{rules}"
        );
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        let doors = Doors::open(&config).await.unwrap();
        let addresses = doors.addresses().unwrap();
        let [http, grpc, resp] = [0, 1, 2].map(|door: usize| addresses[door].address);
        let (stop, stopped) = oneshot::channel::<()>();
        let control = Arc::new(ControlPlane::of(Arc::clone(&engine)));
        tokio::spawn(doors.serve(control, async {
            drop(stopped.await);
            Duration::ZERO
        }));
        Server {
            http,
            grpc,
            resp,
            engine,
            _stop: stop,
        }
    }
}
