//! Checks the doors: each door alone, and doors together.

use std::net::SocketAddr;
use std::path::PathBuf;

use tollgate_rules::document::{At, Field, Place, Problems, Short};

use super::gateway::{self, Gateway};
use super::raw::{Door, Listening, RawServer, TlsOrOff};
use super::tokens::{admin_tokens, data_tokens};
use super::{
    Admin, Grpc, HTTP, Listen, OPEN_ADMIN, OPEN_ADMIN_HELP, Resp, Server, TlsFiles, names, overlap,
};
use crate::fields::{Env, duration_in, expand, number_in, password, text};

/// The most connections that a door accepts.
const MAX_CONNECTIONS: u64 = 10_000;
/// The longest drain time, in milliseconds: an hour.
const MAX_DRAIN: u64 = 3_600_000;

pub(crate) fn server(raw: Option<&RawServer>, env: Env<'_>, problems: &mut Problems<'_>) -> Server {
    let mut server = Server::new();
    let Some(raw) = raw else {
        return server;
    };
    let mut reader = Reader {
        env,
        tls: None,
        taken: Vec::new(),
    };
    reader.tls = reader.tls(&raw.tls, problems).flatten();
    server.tls.clone_from(&reader.tls);
    if let Some(given) = raw.tokens.get() {
        server.tokens = data_tokens(given, env, problems);
    }
    match reader.listen("http", &raw.http, problems) {
        Some(listen) => server.http = listen,
        None => server.http.tls.clone_from(&reader.tls),
    }
    if let Some(more) = raw.http.value().and_then(Door::more) {
        server.http.origins = names::origins(&more.origins, env, problems);
    }
    let per_client = &mut server.max_connections_per_client;
    let range = 1..=MAX_CONNECTIONS;
    number_in(&raw.max_connections_per_client, per_client, range, problems);
    duration_in(&raw.drain, &mut server.drain, 0..=MAX_DRAIN, problems);
    if raw.http.is_absent() {
        reader.taken.push(("http", None, HTTP));
    }
    server.grpc = reader.listen("grpc", &raw.grpc, problems).map(Grpc::new);
    if let (Some(grpc), Some(more)) = (&mut server.grpc, raw.grpc.value().and_then(Door::more))
        && let Some(unknown) = more.unknown_domain.value()
    {
        grpc.unknown_domain = *unknown;
    }
    server.resp = reader.listen("resp", &raw.resp, problems).map(Resp::new);
    if let Some(more) = raw.resp.value().and_then(Door::more) {
        let given = ("password", &more.password);
        let file = ("password_file", &more.password_file);
        let password = password(given, file, env, problems);
        if let Some(resp) = &mut server.resp {
            resp.password = password;
            if let Some(policy) = more.on_store_failure.value() {
                resp.on_store_failure = *policy;
            }
        }
    }
    server.admin = reader.listen("admin", &raw.admin, problems).map(Admin::new);
    let more = raw.admin.value().and_then(Door::more);
    let given = more.map_or(&Field::Absent, |more| &more.tokens);
    let tokens = given.get().map(|at| admin_tokens(at, env, problems));
    if let Some(admin) = &mut server.admin {
        if let Some(more) = more {
            admin.listen.hosts = names::hosts(&more.hosts, env, problems);
            admin.listen.origins = names::origins(&more.origins, env, problems);
        }
        admin.tokens = tokens.unwrap_or_default();
        if let (true, true, Some(key)) = (admin.is_open(), given.is_absent(), raw.admin.key()) {
            problems.report(key, OPEN_ADMIN, OPEN_ADMIN_HELP);
        }
    }
    let listen = reader.listen("gateway", &raw.gateway, problems);
    server.gateway = listen.map(Gateway::new);
    if let Some(more) = raw.gateway.value().and_then(Door::more) {
        // Read even without a listener, so that all problems are reported.
        let mut settings = server.gateway.take();
        let mut unused = Gateway::new(Listen::new(HTTP, None));
        let filled = settings.as_mut().unwrap_or(&mut unused);
        gateway::gateway(filled, more, env, problems);
        server.gateway = settings;
    }
    server
}

struct Reader<'e> {
    env: Env<'e>,
    /// The TLS files for doors that have no `tls` field.
    tls: Option<TlsFiles>,
    /// The addresses of earlier doors, and where they are written.
    taken: Vec<(&'static str, Option<Place>, SocketAddr)>,
}

impl Reader<'_> {
    fn listen<T: Listening>(
        &mut self,
        name: &'static str,
        field: &Field<Door<T>>,
        problems: &mut Problems<'_>,
    ) -> Option<Listen> {
        let Field::Given { key, at } = field else {
            return None;
        };
        let own = at.value.more().map(T::tls);
        let own = own.and_then(|field| self.tls(field, problems));
        let (place, written) = match &at.value {
            Door::Address(text) => (at.place, text),
            Door::More(more) => {
                if more.address().is_absent() {
                    let help = "add the address to listen on, such as `address: 127.0.0.1:8080`";
                    problems.report(*key, format!("`{name}` has no `address`"), help);
                }
                let at = more.address().get()?;
                (at.place, &at.value)
            }
        };
        let value = written.clone();
        let text = expand(&At { place, value }, self.env, problems)?;
        let Ok(address) = text.parse() else {
            let message = format!("`{}` is not an address to listen on", Short(&text));
            let help = "write an IP address and a port, such as 127.0.0.1:8080 or [::]:8080";
            problems.report(place, message, help);
            return None;
        };
        let same = |(_, _, other): &&(&str, Option<Place>, SocketAddr)| overlap(*other, address);
        if let Some((other, at, taken)) = self.taken.iter().find(same) {
            let help = match at {
                Some(at) => {
                    let line = problems.line_of(*at);
                    format!("`{other}` listens on {taken}, see line {line}: choose another port")
                }
                None => format!("`{other}` listens on {taken} by default: choose another port"),
            };
            let message = format!("`{name}` and `{other}` would listen on the same address");
            problems.report(place, message, help);
        }
        self.taken.push((name, Some(place), address));
        let tls = own.unwrap_or_else(|| self.tls.clone());
        let mut listen = Listen::new(address, tls);
        listen.needs_token = at.value.more().is_none_or(T::needs_token);
        Some(listen)
    }

    /// Returns the files of a `tls` field. `None` if there is no readable field; `Some(None)` for
    /// `off`, or if a path is missing.
    fn tls(
        &self,
        field: &Field<TlsOrOff>,
        problems: &mut Problems<'_>,
    ) -> Option<Option<TlsFiles>> {
        let Field::Given { key, at } = field else {
            return None;
        };
        let raw = match &at.value {
            TlsOrOff::Off => return Some(None),
            TlsOrOff::Files(raw) => raw,
        };
        for (name, what, field) in [
            ("cert", "certificate", &raw.cert),
            ("key", "private key", &raw.key),
        ] {
            if field.is_absent() {
                let help = format!("add the path of the {what} (a PEM file)");
                problems.report(*key, format!("this `tls` has no `{name}`"), help);
            }
        }
        let mut path = |name, field| text(name, field, self.env, problems).map(PathBuf::from);
        let client_ca = path("client_ca", &raw.client_ca);
        let (cert, key) = (path("cert", &raw.cert), path("key", &raw.key));
        Some(cert.zip(key).map(|(cert, key)| TlsFiles {
            cert,
            key,
            client_ca,
        }))
    }
}
