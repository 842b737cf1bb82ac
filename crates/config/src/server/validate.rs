//! Checks the doors: each door alone, and doors together.

use std::net::SocketAddr;
use std::path::PathBuf;

use tollgate_rules::document::{At, Field, List, Place, Problems, Short};
use tollgate_rules::{ID_HELP, is_id};

use super::raw::{Door, Listening, RawServer, RawToken, TlsOrOff};
use super::{
    Admin, Grpc, HTTP, Listen, OPEN_ADMIN, OPEN_ADMIN_HELP, Resp, Server, TlsFiles, Token, names,
    overlap,
};
use crate::fields::{Env, expand, number_in, password, text};

const MAX_TOKENS: usize = 256;
/// The most connections that a door accepts.
const MAX_CONNECTIONS: u64 = 10_000;
/// Names that the audit trail uses for changes without a token.
const RESERVED_NAMES: [&str; 5] = ["anonymous", "clock", "file", "rollback", "signal"];
const TOKEN_HELP: &str =
    "write the 64 hexadecimal digits that `printf %s \"$TOKEN\" | sha256sum` prints";
/// The SHA-256 hash of the empty text.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

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
    let tokens = given.get().map(|at| tokens(at, problems));
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
        Some(Listen::new(address, tls))
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

fn tokens(given: &At<List<RawToken>>, problems: &mut Problems<'_>) -> Vec<Token> {
    let List(raw) = &given.value;
    if raw.is_empty() {
        let help = "list at least one token; on a loopback address you may leave `tokens` out to admit everyone";
        problems.report(given.place, "`tokens` is empty", help);
    }
    if let Some(at) = raw.get(MAX_TOKENS) {
        let message = format!("there are more than {MAX_TOKENS} tokens");
        problems.report(at.place, message, "give a team one token");
    }
    let mut tokens: Vec<Token> = Vec::new();
    for at in raw.iter().take(MAX_TOKENS) {
        let Some(token) = token(at, problems) else {
            continue;
        };
        if let Some(other) = tokens.iter().find(|it| it.name == token.name) {
            let place = at.value.name.get().map_or(at.place, |it| it.place);
            let message = format!("there are two tokens named `{}`", other.name);
            let help = "give each token its own name: the audit trail records the name";
            problems.report(place, message, help);
        } else if let Some(other) = tokens.iter().find(|it| it.sha256 == token.sha256) {
            let place = at.value.sha256.get().map_or(at.place, |it| it.place);
            let message = format!("`{}` and `{}` are the same token", other.name, token.name);
            let help = "give each its own token: the audit trail tells callers apart by it";
            problems.report(place, message, help);
        }
        tokens.push(token);
    }
    tokens
}

fn token(at: &At<RawToken>, problems: &mut Problems<'_>) -> Option<Token> {
    let raw = &at.value;
    let start = Place::new(at.place.start, at.place.start);
    if raw.name.is_absent() {
        let help = "name its owner for the audit trail, such as `name: ops`";
        problems.report(start, "this token has no `name`", help);
    }
    if raw.role.is_absent() {
        let help = "write `role: read`, `operate` or `admin`";
        problems.report(start, "this token has no `role`", help);
    }
    if raw.sha256.is_absent() {
        problems.report(start, "this token has no `sha256`", TOKEN_HELP);
    }
    let name = raw.name.get();
    if let Some(name) = name {
        let message = || format!("`{}` cannot be the name of a token", Short(&name.value.0));
        if !is_id(&name.value.0) {
            problems.report(name.place, message(), ID_HELP);
        } else if RESERVED_NAMES.contains(&name.value.0.as_str()) {
            let help = "the audit trail uses this name for changes that no token asked for: choose another";
            problems.report(name.place, message(), help);
        }
    }
    let hash = raw.sha256.get();
    // The message does not quote the text: it may be the token itself.
    let sha256 = hash.and_then(|hash| {
        let digest = digest(&hash.value.0);
        if digest.is_none() {
            problems.report(hash.place, "this is not a SHA-256 hash", TOKEN_HELP);
        } else if hash.value.0.eq_ignore_ascii_case(EMPTY) {
            problems.report(hash.place, "this is the hash of an empty token", TOKEN_HELP);
        }
        digest
    });
    Some(Token {
        name: name?.value.0.clone(),
        role: *raw.role.value()?,
        sha256: sha256?,
    })
}

/// Returns the bytes of 64 hexadecimal digits; `None` if the text is anything else.
fn digest(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits: [u32; 64] = digits?.try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::try_from(pair[0] * 16 + pair[1]).ok()?;
    }
    Some(bytes)
}
