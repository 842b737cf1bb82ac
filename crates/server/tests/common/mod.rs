//! A server on a free port, and ways to talk to it.

#![allow(dead_code)] // Each test file uses only a part.
#![allow(clippy::panic, clippy::unwrap_used)] // Test helpers may panic.

pub(crate) mod app;
pub(crate) mod config_file;
pub(crate) mod gate;
pub(crate) mod issuer;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_config::{Listen, TlsFiles};
use tollgate_server::ControlPlane;
use tollgate_server::events::Webhook;
use tollgate_server::http::{self, PROTOCOLS};
use tollgate_server::net::Listener;

/// Returns `short`, or `long` in a long run, which sets `TOLLGATE_PROOF_CASES`.
pub(crate) fn size(short: usize, long: usize) -> usize {
    match std::env::var_os("TOLLGATE_PROOF_CASES") {
        None => short,
        Some(_) => long,
    }
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a server with the rules of `yaml`.
    pub(crate) fn start(yaml: &str) -> Running {
        Running::start_with(yaml, None)
    }

    /// Starts a server with the rules of `yaml`, and with TLS if `tls` is given.
    pub(crate) fn start_with(yaml: &str, tls: Option<TlsFiles>) -> Running {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Running::start_on(yaml, &Listen::new(any, tls))
    }

    /// Starts a server with the rules of `yaml` on this address.
    pub(crate) fn start_on(yaml: &str, listen: &Listen) -> Running {
        let config = tollgate_config::parse("rules.yaml", yaml, &|_| None).unwrap();
        let listen = listen.clone();
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async move {
                let engine = Arc::new(Engine::start(&config).await.unwrap());
                let listener = Listener::open(&listen, PROTOCOLS).await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let stop = async {
                    drop(stopped.await);
                    Duration::ZERO
                };
                let webhook = Webhook::start(&engine).unwrap();
                let control = Arc::new(ControlPlane::of(engine).with_webhook(webhook));
                http::serve(listener, Arc::clone(&control), stop).await;
                if let Some(webhook) = control.webhook() {
                    webhook.stop().await;
                }
            });
        });
        Running {
            address: told.recv().unwrap(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Tells the server to stop. Open requests go on.
    pub(crate) fn stop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the server has ended.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// Sends `bytes` as they are, and returns the answer until the server closes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may close before it has read everything, but after its answer.
        let _ = stream.write_all(bytes);
        read_all(stream)
    }

    /// Sends `bytes` as they are, closes the sending side, and returns the answer until the server
    /// closes.
    pub(crate) fn raw_and_close(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        read_all(stream)
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.post_with(path, body, &[])
    }

    pub(crate) fn post_with(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        post(&format!("http://{}{path}", self.address), body, headers)
    }

    pub(crate) fn delete(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = agent().delete(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(request.call().unwrap())
    }

    /// Sends a DELETE request with a body.
    pub(crate) fn delete_with(&self, path: &str, body: &str) -> Answer {
        let request = agent().delete(format!("http://{}{path}", self.address));
        Answer::read(request.force_send_body().send(body).unwrap())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[])
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        get(&format!("http://{}{path}", self.address), headers)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn read_all(mut stream: impl Read) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Asks `url`, whatever the status.
pub(crate) fn get(url: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = agent().get(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::read(request.call().unwrap())
}

/// Sends `body` to `url`, whatever the status.
pub(crate) fn post(url: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = agent().post(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::read(request.send(body).unwrap())
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into()
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: ureq::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    fn read(mut response: ureq::http::Response<ureq::Body>) -> Answer {
        let text = response.body_mut().read_to_string().unwrap();
        Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text,
        }
    }

    /// Returns all values of a header, joined as in HTTP.
    pub(crate) fn header(&self, name: &str) -> String {
        let values = self
            .headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap());
        values.collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).unwrap()
    }
}
