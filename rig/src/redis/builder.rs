//! The options of a server.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tempfile::TempDir;

use super::{HOST, Redis};
use crate::certificate;
use crate::faketime;
use crate::port::Port;

/// The environment variable with a server program to use instead of `redis-server`.
const BINARY_VARIABLE: &str = "TOLLGATE_REDIS_SERVER";

/// The only user of a server.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

#[derive(Debug)]
pub(super) struct Tls {
    pub(super) files: certificate::Files,
    /// A Unix socket without TLS, for the rig itself.
    pub(super) plain_socket: PathBuf,
}

/// Options of a [`Redis`] server. See [`Redis::with`].
#[derive(Debug, Default)]
#[must_use = "call `start`"]
pub struct RedisBuilder {
    binary: Option<PathBuf>,
    port: Option<u16>,
    args: Vec<OsString>,
    tls: bool,
    credentials: Option<Credentials>,
    sentinel: Option<String>,
    ahead: Option<i64>,
}

impl RedisBuilder {
    /// Adds an argument for the server, such as `--maxmemory`.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> RedisBuilder {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments for the server. These arguments override those of the rig.
    pub fn args(self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> RedisBuilder {
        args.into_iter().fold(self, RedisBuilder::arg)
    }

    /// Sets the server program. The default is `$TOLLGATE_REDIS_SERVER`, or `redis-server` on the PATH.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> RedisBuilder {
        self.binary = Some(path.into());
        self
    }

    /// Sets the port. The default is a free one.
    pub fn port(mut self, port: u16) -> RedisBuilder {
        self.port = Some(port);
        self
    }

    /// Makes the server accept only TLS, with a certificate for `localhost` and `127.0.0.1` that is signed by the
    /// authority in [`Redis::ca_file`].
    pub fn tls(mut self) -> RedisBuilder {
        self.tls = true;
        self
    }

    /// Makes this user the only one, with all rights. Use only letters and digits: the URL contains both values
    /// without escapes.
    pub fn acl(mut self, user: &str, password: &str) -> RedisBuilder {
        self.credentials = Some(Credentials {
            user: user.to_owned(),
            password: password.to_owned(),
        });
        self
    }

    /// Sets the clock of the server ahead by this many seconds; a negative number sets it back. Only the wall clock
    /// changes, as with `faketime`.
    pub fn clock_ahead(mut self, seconds: i64) -> RedisBuilder {
        self.ahead = Some(seconds);
        self
    }

    /// Makes the server a Sentinel with this config.
    pub(crate) fn sentinel(mut self, config: String) -> RedisBuilder {
        self.sentinel = Some(config);
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    ///
    /// When the server is not ready within ten seconds; the message shows the end of its log.
    pub fn start(self) -> Redis {
        let directory = TempDir::with_prefix("tollgate-").expect("a temporary directory");
        let port = self.port.map_or_else(Port::free, Port::exactly);
        let tls = self.tls.then(|| Tls {
            files: certificate::Files::make(directory.path()),
            plain_socket: directory.path().join("plain.sock"),
        });
        let redis = Redis {
            args: self.command_line(directory.path(), &port, tls.as_ref()),
            binary: self.binary.unwrap_or_else(default_binary),
            credentials: self.credentials,
            environment: self.ahead.map(faketime::environment).unwrap_or_default(),
            tls,
            process: Mutex::default(),
            directory,
            port,
        };
        redis.launch();
        redis
    }

    fn command_line(&self, directory: &Path, port: &Port, tls: Option<&Tls>) -> Vec<OsString> {
        let mut line = Vec::new();
        if let Some(config) = &self.sentinel {
            line.push(write(directory, "sentinel.conf", config).into());
        }
        add(&mut line, "--bind", HOST);
        add(&mut line, "--dir", directory);
        add(&mut line, "--save", "");
        add(&mut line, "--appendonly", "no");
        let number = port.number().to_string();
        match tls {
            None => add(&mut line, "--port", number),
            Some(tls) => {
                add(&mut line, "--port", "0");
                add(&mut line, "--tls-port", number);
                add(&mut line, "--tls-auth-clients", "no");
                add(&mut line, "--tls-ca-cert-file", &tls.files.authority);
                add(&mut line, "--tls-cert-file", &tls.files.certificate);
                add(&mut line, "--tls-key-file", &tls.files.key);
                add(&mut line, "--unixsocket", &tls.plain_socket);
            }
        }
        if let Some(Credentials { user, password }) = &self.credentials {
            let users = format!("user default off\nuser {user} on >{password} ~* &* +@all\n");
            add(
                &mut line,
                "--aclfile",
                write(directory, "users.acl", &users),
            );
        }
        line.extend_from_slice(&self.args);
        if self.sentinel.is_some() {
            line.push("--sentinel".into());
        }
        line
    }
}

fn add(line: &mut Vec<OsString>, option: &str, value: impl AsRef<OsStr>) {
    line.push(option.into());
    line.push(value.as_ref().to_owned());
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let file = directory.join(name);
    fs::write(&file, text).expect("a file in the server's directory");
    file
}

fn default_binary() -> PathBuf {
    env::var_os(BINARY_VARIABLE).map_or_else(|| "redis-server".into(), PathBuf::from)
}
