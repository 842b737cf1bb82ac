//! Commands that talk to a door, with a real server: TLS, client certificates, tokens, and what is said
//! if they are wrong.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

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

/// Returns a command that gets its connection from `args` and `env` only.
fn tollgate(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for name in ["CA", "CERT", "KEY", "SERVER_NAME", "TOKEN", "ADMIN_URL"] {
        command.env_remove(format!("TOLLGATE_{name}"));
    }
    command.args(args).envs(env.iter().copied());
    command
}

/// Runs a command. Returns its exit code, and its output or its errors.
fn run(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = tollgate(args, env).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Runs a command that fails. Returns its errors.
fn fail(args: &[&str], env: &[(&str, &str)]) -> String {
    let (code, text) = run(args, env);
    assert_eq!(code, Some(2), "{args:?}: {text}");
    text
}

/// Every command that talks to a door, its exit codes, and a part of what it prints. HTTP, ADMIN and FILE stand for the
/// addresses and the config of the server, OVERRIDE and VERSION for the first word of what the command before printed.
const COMMANDS: [(&str, &[i32], &str); 27] = [
    (
        "check --server HTTP tenant=acme",
        &[0],
        "allowed by monthly",
    ),
    ("health --server HTTP", &[0], "200 "),
    ("reload --admin ADMIN", &[0], "1 rule"),
    (
        "override set --tenant acme --scale 50% --reason test --admin ADMIN",
        &[0],
        "tenant:acme/*: ",
    ),
    ("override list --admin ADMIN", &[0], "tenant:acme/*: "),
    (
        "override clear OVERRIDE --admin ADMIN",
        &[0],
        "tenant:acme/*",
    ),
    ("candidates --admin ADMIN", &[0], ""),
    (
        "explain --running tenant=acme --admin ADMIN",
        &[0],
        "monthly: applies",
    ),
    (
        "block tenant=bad --for 1h --reason test --admin ADMIN",
        &[0],
        "block:tenant:",
    ),
    ("blocks --admin ADMIN", &[0], "block:tenant:"),
    ("check --server HTTP tenant=bad", &[1], "denied (blocked)"),
    (
        "why tenant=bad --admin ADMIN",
        &[0],
        "an operator has blocked the subject",
    ),
    ("tail tenant=bad --admin ADMIN", &[], " @block blocked "),
    (
        "unblock tenant=bad --reason over --admin ADMIN",
        &[0],
        "unblocked block:tenant:",
    ),
    ("config versions --admin ADMIN", &[0], "in force"),
    ("config show VERSION --admin ADMIN", &[0], "version: 1"),
    // There is no other version. The answer shows that the server was asked.
    (
        "rollback 0f1e2d3c4b5a --reason test --admin ADMIN",
        &[2],
        "there is no version `0f1e2d3c4b5a`",
    ),
    ("audit --admin ADMIN", &[0], "block.set"),
    ("top --once --admin ADMIN", &[0], "monthly"),
    ("usage acme --admin ADMIN", &[0], "monthly"),
    ("export --period current --admin ADMIN", &[0], ""),
    (
        "correct acme --rule monthly --amount 3 --reason test --admin ADMIN",
        &[0],
        "",
    ),
    (
        "grant acme --rule monthly --amount 5 --reason test --admin ADMIN",
        &[0],
        "",
    ),
    // Exits with 1 while the ledger is behind the counters.
    ("reconcile --admin ADMIN", &[0, 1], ""),
    // Exits with 1 if a finding is bad.
    ("doctor --config FILE --live ADMIN", &[0, 1], "modes"),
    (
        "advise --live ADMIN --rule monthly --window 30d",
        &[0],
        "live     monthly",
    ),
    ("health --live --server ADMIN", &[0], "200 "),
];
const CHECK: &[&str] = &["check", "tenant=acme"];

/// Runs every command with these connection arguments and variables.
fn run_all(server: &Server, args: &[&str], env: &[(&str, &str)]) {
    let file = server.file("tollgate.yaml");
    let mut printed = String::new();
    for (line, codes, expected) in COMMANDS {
        let first = printed.split([' ', '\n']).next().unwrap();
        let first = first.trim_end_matches(':').to_owned();
        let words = line.split(' ').map(|word| match word {
            "HTTP" => server.http.as_str(),
            "ADMIN" => &server.admin,
            "FILE" => &file,
            "OVERRIDE" | "VERSION" => &first,
            word => word,
        });
        let words: Vec<&str> = words.chain(args.iter().copied()).collect();
        let code;
        (code, printed) = match words[0] {
            // It has no end.
            "tail" => (None, first_line(tollgate(&words, env))),
            _ => run(&words, env),
        };
        assert!(printed.contains(expected), "{line}: {printed}");
        let is_right = code.map_or(codes.is_empty(), |code| codes.contains(&code));
        assert!(is_right, "{line}: {code:?}: {printed}");
    }
}

/// Returns the first line that a command prints, and ends the command.
fn first_line(mut command: Command) -> String {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    line
}

/// Returns the names of the commands in a help text.
fn commands_in(help: &str) -> Vec<&str> {
    let (_, list) = help.split_once("Commands:\n").unwrap_or_default();
    let (list, _) = list.split_once("\n\n").unwrap_or_default();
    let names = list.lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?;
        name.starts_with(|first: char| first.is_ascii_lowercase())
            .then(|| name.split(' ').next())?
    });
    names.filter(|name| *name != "help").collect()
}

#[test]
fn every_command_that_talks_to_a_door_is_in_the_list() {
    let (_, help) = run(&["--help"], &[]);
    let mut talking = 0;
    for command in commands_in(&help) {
        let (_, help) = run(&[command, "--help"], &[]);
        let below: Vec<String> = match &*commands_in(&help) {
            [] => vec![command.to_owned()],
            below => below.iter().map(|it| format!("{command} {it}")).collect(),
        };
        for name in below {
            let words: Vec<&str> = name.split(' ').chain(["--help"]).collect();
            let (_, help) = run(&words, &[]);
            if help.contains("--ca <FILE>") {
                talking += 1;
                let mut lines = COMMANDS.iter().map(|(line, ..)| line);
                let is_listed = lines.any(|line| line.starts_with(&format!("{name} ")));
                assert!(is_listed, "{name} is not in COMMANDS");
            }
        }
    }
    assert_eq!(talking, 25);
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
