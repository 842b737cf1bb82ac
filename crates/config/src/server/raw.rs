//! The doors of a config as they are written.

use crate::server::{Role, ThrottleFailure, UnknownDomain};
use tollgate_rules::document::{
    Field, List, Node, Problems, Read, Text, Value, schema, section, wanted,
};

section! {
    /// Where to listen. `${VAR}` in its texts reads the environment.
    pub(crate) struct RawServer is "`server`" {
        /// The HTTP API and forward-auth: 127.0.0.1:8080 unless given.
        http: Door<RawHttp> = "http",
        /// Envoy's rate limit service; not listened to unless given.
        grpc: Door<RawGrpc> = "grpc",
        /// The Redis protocol; not listened to unless given.
        resp: Door<RawResp> = "resp",
        /// The admin API; not listened to unless given.
        admin: Door<RawAdmin> = "admin",
        /// TLS for every listener that has none of its own.
        tls: TlsOrOff = "tls",
    }
}

section! {
    /// The HTTP API and forward-auth.
    pub(crate) struct RawHttp is "`http`" {
        /// Address and port, such as 127.0.0.1:8080.
        address (required): Text = "address",
        /// TLS, or off; that of the server unless given.
        tls: TlsOrOff = "tls",
    }
}

section! {
    /// Envoy's rate limit service.
    pub(crate) struct RawGrpc is "`grpc`" {
        /// Address and port, such as 127.0.0.1:8081.
        address (required): Text = "address",
        /// TLS, or off; that of the server unless given.
        tls: TlsOrOff = "tls",
        /// What becomes of a request whose domain no rule knows: allow unless given.
        unknown_domain: UnknownDomain = "unknown_domain",
    }
}

section! {
    /// The Redis protocol.
    pub(crate) struct RawResp is "`resp`" {
        /// Address and port, such as 127.0.0.1:6390.
        address (required): Text = "address",
        /// TLS, or off; that of the server unless given.
        tls: TlsOrOff = "tls",
        /// What clients must know to enter.
        password: Text = "password",
        /// A file that holds it, read at the start.
        password_file: Text = "password_file",
        /// What `CL.THROTTLE` answers when the store does not: error unless given. Other commands go by
        /// the rules.
        on_store_failure: ThrottleFailure = "on_store_failure",
    }
}

section! {
    /// The admin API.
    pub(crate) struct RawAdmin is "`admin`" {
        /// Address and port, such as 127.0.0.1:8082.
        address (required): Text = "address",
        /// TLS, or off; that of the server unless given.
        tls: TlsOrOff = "tls",
        /// Who may enter. Required unless the address is a loopback address.
        tokens: List<RawToken> = "tokens",
    }
}

section! {
    /// Somebody who may enter the admin API.
    pub(crate) struct RawToken is "a token" {
        /// Who it is, for the audit trail.
        name (required): Text = "name",
        /// What they may do.
        role (required): Role = "role",
        /// The SHA-256 hash of the token, in hexadecimal.
        sha256 (required): Text = "sha256",
    }
}

section! {
    /// The files that TLS needs, in PEM.
    pub(crate) struct RawTls is "`tls`" {
        /// The certificate, with those that lead from it to an authority.
        cert (required): Text = "cert",
        /// Its private key.
        key (required): Text = "key",
        /// Who signs clients' certificates. If given, clients must have one.
        client_ca: Text = "client_ca",
    }
}

/// A door: its address alone, or a map with more.
#[derive(Debug)]
pub(crate) enum Door<T> {
    Address(Text),
    More(T),
}

/// What all doors have.
pub(crate) trait Listening {
    fn address(&self) -> &Field<Text>;
    fn tls(&self) -> &Field<TlsOrOff>;
}

macro_rules! listening {
    ($($ty:ty),+) => {
        $(impl Listening for $ty {
            fn address(&self) -> &Field<Text> {
                &self.address
            }

            fn tls(&self) -> &Field<TlsOrOff> {
                &self.tls
            }
        })+
    };
}
listening!(RawHttp, RawGrpc, RawResp, RawAdmin);

impl<T> Door<T> {
    /// What it has besides an address, if it is a map.
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
