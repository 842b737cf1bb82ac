//! Runs the commands of `docs/production.md` that have an output, with a real Redis and PostgreSQL, and compares
//! the output. A block of YAML that names a file starts a server. Of the `sh` blocks, the test runs all but the start of
//! a server: commands of `tollgate`, the restart of the server, and the commands that restore a ledger.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::{Serving, are_like};
use tollgate_rig::{Postgres, Redis};

const DOCS: &str = include_str!("../../../docs/production.md");
const ALERTS: &str = include_str!("../../../deploy/prometheus/tollgate.rules.yml");
/// The token whose hash is in the config.
const TOKEN: &str = "test2";
/// The commands that restore a ledger are run while the server is stopped.
const RESTORE: &str = "mkdir lost && mv ledger.db*";
/// Follows the denials until there is one. Denials in the same second would be left out of the journal.
const FOLLOW: &str = "\
    timeout 60 LINE >tail.out & \
    while kill -0 $! && ! [ -s tail.out ]; do \
        sleep 1.1; tollgate check --server http://127.0.0.1:8080 action=search tenant=acme api_key=k1 >check.out; \
    done; \
    kill $!; cat tail.out; rm tail.out";
const RESTART: &str = "systemctl restart tollgate";
/// The environment of the config.
const SECRETS: [(&str, &str); 2] = [
    ("${TOLLGATE_SECRET}", "keep this one to yourself"),
    ("${NEW_SECRET}", "keep the new one to yourself"),
];

struct Guide {
    folder: tempfile::TempDir,
    redis: Redis,
    postgres: Postgres,
    serving: Option<(Serving, [String; 2])>,
    /// The file of the last server.
    file: String,
}

impl Guide {
    fn new() -> Guide {
        let postgres = Postgres::start();
        postgres.database("tollgate");
        Guide {
            folder: tempfile::tempdir().unwrap(),
            redis: Redis::start(),
            postgres,
            serving: None,
            file: String::new(),
        }
    }

    /// Replaces the ports of Redis and PostgreSQL, and the variables with secrets.
    fn with_servers(&self, text: &str) -> String {
        let text = text.replace("6379", &self.redis.port().to_string());
        let text = text.replace("5432", &self.postgres.port().to_string());
        SECRETS.iter().fold(text, |text, (variable, secret)| {
            text.replace(variable, secret)
        })
    }

    /// Writes the file that the first line of a block names, and starts a server with it. Blocks without a name
    /// are parts of a config.
    fn write(&mut self, block: &str) {
        let (first, text) = block.split_once('\n').unwrap();
        let Some(name) = first.strip_prefix("# ") else {
            return;
        };
        let text = self.with_servers(text);
        let text = text.replace(":8080", ":0").replace(":8082", ":0");
        // On a busy machine, Redis may need longer than the default.
        let redis = format!("127.0.0.1:{}\"", self.redis.port());
        let text = text.replace(&redis, &format!("{redis}, timeout: 5s"));
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        self.stop();
        self.file = path.display().to_string();
        self.start();
    }

    fn start(&mut self) {
        let data = self.folder.path().join("data").display().to_string();
        let args = ["--config", &self.file, "--data", &data];
        let mut serving = Serving::start_in(self.folder.path(), &args);
        let admin = serving.admin();
        let port = |url: &str| url.rsplit_once(':').unwrap().1.to_owned();
        let ports = [port(&serving.url), port(&admin)];
        self.serving = Some((serving, ports));
    }

    fn stop(&mut self) {
        if let Some((mut serving, _)) = self.serving.take() {
            // A normal stop writes all usage.
            serving.signal("-INT");
            assert_eq!(serving.child.wait().unwrap().code(), Some(0));
        }
    }

    /// Runs commands whose output the page does not show. Returns their number.
    fn run_block(&self, block: &str) -> usize {
        for line in block.lines() {
            let line = line.split(" #").next().unwrap();
            if line.starts_with("tollgate tail") {
                let printed = self.run_line(&FOLLOW.replace("LINE", line));
                assert!(printed.contains("api"), "{line}: {printed}");
            } else {
                self.run_line(line);
            }
        }
        block.lines().count()
    }

    fn run_line(&self, line: &str) -> String {
        let mut line = self.with_servers(line);
        let mut admin = String::new();
        if let Some((_, [http, door])) = &self.serving {
            line = line.replace(":8080", &format!(":{http}"));
            line = line.replace(":8082", &format!(":{door}"));
            admin = format!("http://127.0.0.1:{door}");
        }
        let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
        let path = format!(
            "{}:{}",
            program.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        let output = Command::new("bash")
            .args(["-c", &line])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("TOLLGATE_TOKEN", TOKEN)
            .env("TOLLGATE_ADMIN_URL", admin)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        // Exit code 1 is a negative result: denied, or different.
        assert!(
            matches!(output.status.code(), Some(0 | 1)) && !errors.contains("command not found"),
            "{line}\n{errors}\n    install: apt-get install -y curl postgresql redis-tools sqlite3"
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn commands_of_the_page_give_the_shown_output() {
    let mut guide = Guide::new();
    let mut commands = 0;
    let mut wrong = String::new();
    let (mut restored, mut restarts, mut commands_without_output) = (false, 0, 0);
    for block in DOCS.split("\n```").skip(1).step_by(2) {
        if let Some(block) = block.strip_prefix("yaml\n") {
            guide.write(block);
        }
        if let Some(block) = block.strip_prefix("sh\n")
            && block.starts_with(RESTORE)
        {
            guide.stop();
            guide.run_line(block);
            guide.start();
            restored = true;
        }
        if let Some(block) = block.strip_prefix("sh\n") {
            if block == RESTART {
                guide.stop();
                guide.start();
                restarts += 1;
            } else if block.starts_with("tollgate ") {
                commands_without_output += guide.run_block(block);
            } else {
                assert!(block.starts_with(RESTORE) || block.starts_with("export "));
            }
        }
        let Some(examples) = block.strip_prefix("console\n") else {
            continue;
        };
        for example in examples.strip_prefix("$ ").unwrap().split("\n$ ") {
            let (line, expected) = example.split_once('\n').unwrap_or((example, ""));
            let output = guide.run_line(line);
            if !are_like(output.trim_end(), expected.trim_end()) {
                writeln!(wrong, "$ {line}\n{output}").unwrap();
            }
            commands += 1;
        }
    }
    assert!(wrong.is_empty(), "the page shows another output:\n{wrong}");
    assert_eq!(commands, DOCS.matches("\n$ ").count());
    assert!(commands >= 20 && restored && restarts == 2 && commands_without_output == 3);
}

#[test]
fn every_alert_has_a_remedy() {
    let alerts = ALERTS
        .lines()
        .filter_map(|line| line.split_once("- alert: "));
    let missing = alerts
        .map(|(_, name)| name.trim())
        .filter(|name| !DOCS.contains(&format!("`{name}`")));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
}
