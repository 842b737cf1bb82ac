//! The fields of `server`. Doc comments here are also the descriptions in the JSON schema.

use crate::server::gateway::RawGateway;
use crate::server::tokens::DoorTokens;
use crate::server::{Role, ThrottleFailure, TokenScope, UnknownDomain};
use tollgate_rules::document::{
    Duration, Field, List, Node, Problems, Read, Text, Value, Whole, schema, section, wanted,
};

section! {
    /// Where to listen. `${VAR}` in its texts reads the environment.
    pub(crate) struct RawServer is "`server`" {
        /// The HTTP API and forward-auth (default 127.0.0.1:8080).
        http: Door<RawHttp> = "http",
        /// Envoy's rate limit service; off by default.
        grpc: Door<RawGrpc> = "grpc",
        /// The Redis protocol; off by default.
        resp: Door<RawResp> = "resp",
        /// The admin API; off by default.
        admin: Door<RawAdmin> = "admin",
        /// The gateway: passes the requests of clients on to upstreams, within limits; off by default.
        gateway: Door<RawGateway> = "gateway",
        /// The tokens that open the data doors: http, grpc and resp. Without them, clients need no token there.
        tokens: List<RawDataToken> = "tokens",
        /// TLS for every door without a tls field of its own.
        tls: TlsOrOff = "tls",
        /// The most open connections that one client address may have at a door (default 2000). An IPv6 network of 64 bits counts as one address. The addresses in trusted_proxies are exempt.
        max_connections_per_client: Whole = "max_connections_per_client",
        /// How long the server goes on after SIGTERM, so that load balancers can choose another one (default 5s). Meanwhile it reports that it is not ready.
        drain: Duration = "drain",
    }
}

section! {
    /// The HTTP API and forward-auth.
    pub(crate) struct RawHttp is "`http`" {
        /// Address and port, such as 127.0.0.1:8080.
        address (required): Text = "address",
        /// The TLS files, or off (default: the tls field of the server).
        tls: TlsOrOff = "tls",
        /// Whether clients need a token: required (default), or off. Only if the server has tokens.
        tokens: DoorTokens = "tokens",
        /// The origins of web pages that may send requests, such as https://app.example.com.
        origins: List<Text> = "origins",
    }
}

section! {
    /// Envoy's rate limit service.
    pub(crate) struct RawGrpc is "`grpc`" {
        /// Address and port, such as 127.0.0.1:8081.
        address (required): Text = "address",
        /// The TLS files, or off (default: the tls field of the server).
        tls: TlsOrOff = "tls",
        /// Whether clients need a token: required (default), or off. Only if the server has tokens.
        tokens: DoorTokens = "tokens",
        /// The answer for a domain that no rule matches (default allow).
        unknown_domain: UnknownDomain = "unknown_domain",
    }
}

section! {
    /// The Redis protocol.
    pub(crate) struct RawResp is "`resp`" {
        /// Address and port, such as 127.0.0.1:6390.
        address (required): Text = "address",
        /// The TLS files, or off (default: the tls field of the server).
        tls: TlsOrOff = "tls",
        /// Whether clients need a token: required (default), or off. Only if the server has tokens.
        tokens: DoorTokens = "tokens",
        /// The password that clients must give.
        password: Text = "password",
        /// A file that holds the password, read at the start.
        password_file: Text = "password_file",
        /// The answer of `CL.THROTTLE` when the store fails (default error). Other commands follow the rules.
        on_store_failure: ThrottleFailure = "on_store_failure",
    }
}

section! {
    /// The admin API.
    pub(crate) struct RawAdmin is "`admin`" {
        /// Address and port, such as 127.0.0.1:8082.
        address (required): Text = "address",
        /// The TLS files, or off (default: the tls field of the server).
        tls: TlsOrOff = "tls",
        /// The tokens that open the door. Required unless the address is a loopback address.
        tokens: List<RawToken> = "tokens",
        /// The names under which clients reach the door, such as admin.example.com. Loopback names and the address are always known.
        hosts: List<Text> = "hosts",
        /// The origins of web pages that may send requests, such as https://ops.example.com.
        origins: List<Text> = "origins",
    }
}

section! {
    /// A token of the admin API.
    pub(crate) struct RawToken is "a token" {
        /// The name of the token's owner, for the audit trail.
        name (required): Text = "name",
        /// What the token allows.
        role (required): Role = "role",
        /// The SHA-256 hash of the token, in hexadecimal.
        sha256 (required): Text = "sha256",
    }
}

section! {
    /// A token of the data doors.
    pub(crate) struct RawDataToken is "a token" {
        /// The name of the token's owner, for the log.
        name (required): Text = "name",
        /// What the token allows: check, reserve, refund, usage, metrics.
        scopes (required): List<TokenScope> = "scopes",
        /// The SHA-256 hash of the token, in hexadecimal.
        sha256 (required): Text = "sha256",
    }
}

section! {
    /// The files that TLS needs, in PEM.
    pub(crate) struct RawTls is "`tls`" {
        /// The certificate chain.
        cert (required): Text = "cert",
        /// The private key of the certificate.
        key (required): Text = "key",
        /// The authority that signs clients' certificates. If given, clients must present such a certificate.
        client_ca: Text = "client_ca",
    }
}

/// A door: its address alone, or a map with more.
#[derive(Debug)]
pub(crate) enum Door<T> {
    Address(Text),
    More(T),
}

/// The fields that all doors have.
pub(crate) trait Listening {
    fn address(&self) -> &Field<Text>;
    fn tls(&self) -> &Field<TlsOrOff>;
    /// Whether clients need a token of the server.
    fn needs_token(&self) -> bool;
}

macro_rules! listening {
    ($($ty:ty: $needs_token:expr),+) => {
        $(impl Listening for $ty {
            fn address(&self) -> &Field<Text> {
                &self.address
            }

            fn tls(&self) -> &Field<TlsOrOff> {
                &self.tls
            }

            fn needs_token(&self) -> bool {
                let needs_token: fn(&$ty) -> bool = $needs_token;
                needs_token(self)
            }
        })+
    };
}
listening!(
    RawHttp: |it| it.tokens.value() != Some(&DoorTokens::Off),
    RawGrpc: |it| it.tokens.value() != Some(&DoorTokens::Off),
    RawResp: |it| it.tokens.value() != Some(&DoorTokens::Off),
    // The admin door has its own tokens.
    RawAdmin: |_| true,
    // The clients of the gateway are those of the upstreams.
    RawGateway: |_| false
);

impl<T> Door<T> {
    /// The map of fields; `None` if the door is only an address.
    pub(crate) fn more(&self) -> Option<&T> {
        match self {
            Door::Address(_) => None,
            Door::More(more) => Some(more),
        }
    }
}

impl<T: Read> Read for Door<T> {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Door<T>> {
        match &node.value {
            Value::Map(_) => T::read(node, problems).map(Door::More),
            Value::Scalar { .. } if !node.is_null() => {
                Text::read(node, problems).map(Door::Address)
            }
            _ => {
                let help = "write an address such as 127.0.0.1:8080, or { address: 127.0.0.1:8080, tls: off }";
                wanted("an address to listen on", help, node, problems);
                None
            }
        }
    }
}

schema!([T] Door<T>, format!("Door{}", T::schema_name()), generator => { "anyOf": [{ "type": "string" }, generator.subschema_for::<T>()] });

/// TLS, or the word `off`.
#[derive(Debug)]
pub(crate) enum TlsOrOff {
    Off,
    Files(RawTls),
}

impl Read for TlsOrOff {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<TlsOrOff> {
        match &node.value {
            Value::Scalar { text, .. } if &**text == "off" => Some(TlsOrOff::Off),
            Value::Map(_) => RawTls::read(node, problems).map(TlsOrOff::Files),
            _ => {
                let help = "write { cert: FILE, key: FILE }, or `off`";
                wanted("TLS", help, node, problems);
                None
            }
        }
    }
}

schema!(TlsOrOff, "TlsOrOff", generator => { "anyOf": [{ "enum": ["off"] }, generator.subschema_for::<RawTls>()] });
