//! Commands that talk to a door, with a real server: TLS, client certificates, tokens, and what is said
//! if they are wrong.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::Serving;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// The SHA-256 hash of `secret`.
const SHA256: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

/// The name in the server's certificate, besides `localhost`.
const NAME: &str = "tollgate.internal";

/// Makes an authority in `folder`, and certificates that it signed: `server`, `client`, and `named`,
/// which is for [`NAME`] only.
fn make_certificates(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    fs::write(folder.join("ca.pem"), ca).unwrap();
    let issuer = Issuer::new(params, key);
    for (file, names) in [
        ("server", &["localhost", "127.0.0.1"][..]),
        ("named", &[NAME]),
        ("client", &["client"]),
    ] {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let cert = CertificateParams::new(names).unwrap();
        let cert = cert.signed_by(&key, &issuer).unwrap();
        fs::write(folder.join(format!("{file}.pem")), cert.pem()).unwrap();
        fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

/// A server with TLS at all doors, in a folder with certificates.
struct Server {
    folder: TempDir,
    _serving: Serving,
    /// The addresses of the HTTP door and of the admin door.
    http: String,
    admin: String,
}

impl Server {
    /// Starts a server with this `server` section. `DIR` stands for the folder.
    fn start(section: &str) -> Server {
        let folder = TempDir::new().unwrap();
        make_certificates(folder.path());
        let directory = folder.path().display().to_string();
        let tokens = format!("[{{ name: ops, role: admin, sha256: {SHA256} }}]");
        let data = format!("[{{ name: shop, scopes: [check], sha256: {SHA256} }}]");
        let config = format!(
            "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\nledger: {{ sqlite: DIR/ledger.db }}\n\
             server:\n  admin: {{ address: \"127.0.0.1:0\", tokens: {tokens} }}\n  tokens: {data}\n{section}\
             rules:\n  - {{ id: monthly, per: [tenant], algorithm: quota, limit: 100, period: month }}\n"
        );
        let config = config.replace("DIR", &directory);
        let file = folder.path().join("tollgate.yaml");
        fs::write(&file, config).unwrap();
        let mut serving = Serving::start(&["--config", file.to_str().unwrap()]);
        let http = serving.url.clone();
        let admin = serving.admin();
        Server {
            folder,
            _serving: serving,
            http,
            admin,
        }
    }

    fn with_tls() -> Server {
        Server::start("  tls: { cert: DIR/server.pem, key: DIR/server.key }\n")
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// Runs a command. Returns its exit code, and its output or its errors.
fn run(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for name in ["CA", "CERT", "KEY", "SERVER_NAME", "TOKEN", "ADMIN_URL"] {
        command.env_remove(format!("TOLLGATE_{name}"));
    }
    let output = command
        .args(args)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Runs a command that fails. Returns its errors.
fn fail(args: &[&str], env: &[(&str, &str)]) -> String {
    let (code, text) = run(args, env);
    assert_eq!(code, Some(2), "{args:?}: {text}");
    text
}

/// Every command that talks to a door, without the address: first those of the admin door.
const COMMANDS: [&[&str]; 10] = [
    &["reload"],
    &[
        "override", "set", "--tenant", "acme", "--scale", "50%", "--reason", "test",
    ],
    &["override", "list"],
    &["override", "clear", "tenant:acme"],
    &["candidates"],
    &["usage", "acme"],
    &["export", "--period", "current"],
    &[
        "correct", "acme", "--rule", "monthly", "--amount", "3", "--reason", "test",
    ],
    &[
        "grant", "acme", "--rule", "monthly", "--amount", "5", "--reason", "test",
    ],
    &["reconcile"],
];
const CHECK: &[&str] = &["check", "tenant=acme"];

/// Runs every command with these connection arguments and variables.
fn run_all(server: &Server, args: &[&str], env: &[(&str, &str)]) {
    let check = [CHECK, &["--server", &server.http], args].concat();
    let (code, text) = run(&check, env);
    assert_eq!(code, Some(0), "{check:?}: {text}");
    assert!(text.starts_with("allowed by monthly"), "{text}");
    for command in COMMANDS {
        let command = match command {
            // The name of the override is in the list.
            ["override", "clear", _] => {
                let list = [&["override", "list", "--admin", &server.admin], args].concat();
                let (_, text) = run(&list, env);
                let name = text.split(": ").next().unwrap().to_owned();
                run(
                    &[
                        &["override", "clear", &name, "--admin", &server.admin],
                        args,
                    ]
                    .concat(),
                    env,
                )
            }
            command => run(&[command, &["--admin", &server.admin], args].concat(), env),
        };
        // `reconcile` exits with 1 while the ledger is behind the counters.
        assert!(matches!(command.0, Some(0 | 1)), "{}", command.1);
    }
}

#[test]
fn every_command_uses_tls_and_the_token() {
    let server = Server::with_tls();
    let ca = server.file("ca.pem");
    run_all(&server, &["--ca", &ca, "--token", "secret"], &[]);
    let env = [("TOLLGATE_CA", ca.as_str()), ("TOLLGATE_TOKEN", "secret")];
    run_all(&server, &[], &env);
    // An address without a scheme, with a flag that is about TLS.
    let bare = server.http.strip_prefix("https://").unwrap();
    let (code, text) = run(&[CHECK, &["--server", bare]].concat(), &env);
    assert_eq!(code, Some(0), "{text}");
    // Without a token, and with a wrong one.
    let check = [CHECK, &["--server", &server.http, "--ca", &ca]].concat();
    let text = fail(&check, &[]);
    assert!(text.contains("error: this needs a token"), "{text}");
    assert!(text.contains("help: set TOLLGATE_TOKEN"), "{text}");
    let text = fail(&check, &[("TOLLGATE_TOKEN", "nonsense")]);
    assert!(text.contains("error: this needs a token"), "{text}");
}

#[test]
fn every_command_presents_the_client_certificate() {
    let server = Server::start(
        "  tls: { cert: DIR/server.pem, key: DIR/server.key, client_ca: DIR/ca.pem }\n",
    );
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| server.file(name));
    let args = [
        "--ca", &ca, "--cert", &cert, "--key", &key, "--token", "secret",
    ];
    run_all(&server, &args, &[]);
    let env = [
        ("TOLLGATE_CA", ca.as_str()),
        ("TOLLGATE_CERT", &cert),
        ("TOLLGATE_KEY", &key),
        ("TOLLGATE_TOKEN", "secret"),
    ];
    run_all(&server, &[], &env);

    // Without a certificate, with one of another authority, and with a key of another certificate.
    let check = [CHECK, &["--server", &server.http, "--ca", &ca]].concat();
    let text = fail(&check, &[]);
    assert!(
        text.contains("the door asks for a client certificate"),
        "{text}"
    );
    assert!(
        text.contains("help: give it with --cert and --key"),
        "{text}"
    );
    let reload = fail(&["reload", "--admin", &server.admin, "--ca", &ca], &[]);
    assert!(
        reload.contains("the door asks for a client certificate"),
        "{reload}"
    );
    let stranger = TempDir::new().unwrap();
    make_certificates(stranger.path());
    let [cert, key] =
        ["client.pem", "client.key"].map(|name| stranger.path().join(name).display().to_string());
    let text = fail(
        &[&check[..], &["--cert", &cert, "--key", &key]].concat(),
        &[],
    );
    assert!(
        text.contains("does not accept this client certificate"),
        "{text}"
    );
    let own = server.file("client.pem");
    let text = fail(
        &[&check[..], &["--cert", &own, "--key", &key]].concat(),
        &[],
    );
    assert!(
        text.contains("--cert and --key cannot be used together"),
        "{text}"
    );
    let text = fail(&[&check[..], &["--cert", &own]].concat(), &[]);
    assert!(text.contains("--key <FILE>"), "{text}");
}

#[test]
fn wrong_authority_and_wrong_name_are_explained() {
    let server = Server::start("  tls: { cert: DIR/named.pem, key: DIR/named.key }\n");
    let stranger = TempDir::new().unwrap();
    make_certificates(stranger.path());
    let (own, other) = (server.file("ca.pem"), stranger.path().join("ca.pem"));
    for (address, flag) in [(&server.http, "--server"), (&server.admin, "--admin")] {
        let command: &[&str] = match flag {
            "--server" => CHECK,
            _ => &["override", "list"],
        };
        let base = [command, &[flag, address, "--token", "secret"]].concat();
        let run = |args: &[&str]| run(&[&base[..], args].concat(), &[]);
        let (code, text) = run(&["--ca", other.to_str().unwrap()]);
        assert_eq!(code, Some(2), "{text}");
        assert!(
            text.contains("is not signed by a trusted authority"),
            "{text}"
        );
        assert!(
            text.contains("help: give the authority with --ca"),
            "{text}"
        );
        let (_, text) = run(&["--ca", &own]);
        assert!(text.contains("is for another name"), "{text}");
        assert!(text.contains("--server-name"), "{text}");
        let (code, text) = run(&["--ca", &own, "--server-name", NAME]);
        assert_eq!(code, Some(0), "{text}");
    }
    let missing = fail(
        &[
            CHECK,
            &["--server", &server.http, "--ca", "/nowhere/ca.pem"],
        ]
        .concat(),
        &[],
    );
    assert!(
        missing.contains("error: --ca: /nowhere/ca.pem: "),
        "{missing}"
    );
}

#[test]
fn wrong_scheme_is_explained() {
    let server = Server::with_tls();
    let plain = server.http.replace("https://", "http://");
    let text = fail(&[CHECK, &["--server", &plain]].concat(), &[]);
    assert!(
        text.contains("help: if the door uses TLS, write https://"),
        "{text}"
    );
    let server = Server::start("");
    let encrypted = server.http.replace("http://", "https://");
    let ca = server.file("ca.pem");
    let text = fail(
        &[CHECK, &["--server", &encrypted, "--ca", &ca]].concat(),
        &[],
    );
    assert!(text.contains("the door does not speak TLS"), "{text}");
}

#[test]
fn token_is_not_sent_in_plain_text_to_another_machine() {
    let env = [("TOLLGATE_TOKEN", "secret")];
    // Nothing listens at these addresses, which are reserved for documentation.
    for (command, flag) in [(CHECK, "--server"), (&["reload"][..], "--admin")] {
        for address in [
            "http://192.0.2.1:8082",
            "192.0.2.1:8082",
            "http://[2001:db8::1]:8082",
        ] {
            let text = fail(&[command, &[flag, address]].concat(), &env);
            assert!(
                text.contains("error: the token would be sent in plain text"),
                "{text}"
            );
            assert!(text.contains("help: write https://"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
    // Loopback is this machine, and a proxy of the environment is not used.
    let server = Server::start("");
    let proxy = ("HTTP_PROXY", "http://192.0.2.1:3128");
    let (code, text) = run(
        &[CHECK, &["--server", &server.http]].concat(),
        &[env[0], proxy],
    );
    assert_eq!(code, Some(0), "{text}");
    let named = server.http.replace("127.0.0.1", "localhost");
    let (code, text) = run(&[CHECK, &["--server", &named]].concat(), &env);
    assert_eq!(code, Some(0), "{text}");
}
