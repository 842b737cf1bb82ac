//! The Helm chart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tollgate_rig::tools;

use crate::{checkout, documents, fail, run, validate};

/// The oldest version of Kubernetes that the chart is for, and the newest that was tried.
const VERSIONS: [&str; 2] = ["1.25", "1.37"];

fn helm(command: &[&str]) -> Command {
    let mut helm = Command::new(tools::helm());
    helm.args(command).arg(checkout("deploy/helm/tollgate"));
    helm
}

/// Returns the files with sets of values.
fn value_sets() -> Vec<PathBuf> {
    let sets = fs::read_dir(checkout("deploy/helm/tollgate/ci")).unwrap();
    let sets: Vec<PathBuf> = sets.map(|it| it.unwrap().path()).collect();
    assert!(sets.len() >= 4);
    sets
}

/// Returns the manifests of a set of values.
fn manifests(values: &Path) -> String {
    let mut template = helm(&["template", "limits", "--namespace", "edge"]);
    run(template.arg("--values").arg(values))
}

/// Returns the manifest of a kind, of one of the sets of values.
fn manifest(set: &str, kind: &str) -> Value {
    let values = checkout(&format!("deploy/helm/tollgate/ci/{set}-values.yaml"));
    let mut all = documents(&manifests(&values)).into_iter();
    let found = all.find(|it| it["kind"] == kind);
    found.unwrap_or_else(|| panic!("{set} has no {kind}"))
}

fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn manifests_fit_the_schemas_of_kubernetes() {
    for values in value_sets() {
        let mut lint = helm(&["lint", "--strict"]);
        run(lint.arg("--values").arg(&values));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("manifests.yaml");
        let text = manifests(&values);
        fs::write(&file, &text).unwrap();
        for version in VERSIONS {
            let mut check = tools::kubernetes_validate();
            check.args(["--strict", "--kubernetes-version", version]);
            run(check.arg(&file));
        }
        for document in documents(&text) {
            match document["kind"].as_str().unwrap() {
                "ServiceMonitor" => tools::check_service_monitor(&document.to_string()),
                "ConfigMap" => {
                    let config = folder.path().join("tollgate.yaml");
                    fs::write(&config, document["data"]["tollgate.yaml"].as_str().unwrap())
                        .unwrap();
                    validate(&config);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn mistakes_are_rejected_with_a_remedy() {
    let ledger = "config.ledger.sqlite=/var/lib/tollgate/ledger.db";
    let cases: [(&[&str], &str); 13] = [
        (&["replicaCount=2"], "set config.store.redis"),
        (&["autoscaling.enabled=true"], "set config.store.redis"),
        (
            &[
                "replicaCount=2",
                "config.store.redis.url=redis://r",
                "persistence.enabled=true",
            ],
            "a volume belongs to one pod",
        ),
        (
            &["replicaCount=2", "config.store.redis.url=redis://r", ledger],
            "set config.ledger.postgres",
        ),
        (&[ledger], "set persistence.enabled: true"),
        (&["doors.admin.enabled=true"], "set doors.admin.tokens"),
        (&["doors.gateway.enabled=true"], "set config.upstreams"),
        (
            &["serviceMonitor.enabled=true", "serviceMonitor.door=admin"],
            "set doors.admin.enabled: true",
        ),
        (
            &[
                "serviceMonitor.enabled=true",
                "serviceMonitor.door=admin",
                "doors.admin.enabled=true",
                "doors.admin.tokens[0].name=ops",
                "doors.admin.tokens[0].role=read",
                "doors.admin.tokens[0].sha256=60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
            ],
            "set serviceMonitor.authorization",
        ),
        (
            &["tls.requireClientCertificates=true"],
            "needs tls.secretName",
        ),
        (&["terminationGracePeriodSeconds=30"], "must be at least 55"),
        (
            &["drainSeconds=60"],
            "terminationGracePeriodSeconds must be at least 110",
        ),
        // The schema finds misspelled names.
        (&["replicas=2"], "replicas"),
    ];
    for (values, remedy) in cases {
        let mut template = helm(&["template", "limits"]);
        let printed = fail(template.args(["--set", &values.join(",")]));
        assert!(printed.contains(remedy), "{values:?}: {printed}");
    }
}

#[test]
fn pods_drain_and_are_probed_at_the_right_door() {
    let deployment = manifest("fleet", "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() >= 55);
    let container = container(&deployment);
    // The server drains by itself.
    assert_eq!(container["lifecycle"], Value::Null);
    let probe = |name: &str| container[name]["httpGet"].clone();
    assert_eq!(
        probe("readinessProbe"),
        json!({"path": "/readyz", "port": "admin"})
    );
    assert_eq!(
        probe("livenessProbe"),
        json!({"path": "/healthz", "port": "admin"})
    );
    assert_eq!(
        probe("startupProbe"),
        json!({"path": "/healthz", "port": "admin"})
    );
    // With an autoscaler, `helm upgrade` must not set the number of replicas.
    assert_eq!(deployment["spec"]["replicas"], Value::Null);
    assert_eq!(
        deployment["spec"]["strategy"]["rollingUpdate"],
        json!({"maxSurge": 1, "maxUnavailable": 0})
    );
    // Without the admin door, the HTTP door is asked. With client certificates, the program asks.
    let deployment = manifest("default", "Deployment");
    let readiness = &crate::chart::container(&deployment)["readinessProbe"];
    assert_eq!(readiness["httpGet"]["port"], "http");
    let deployment = manifest("tls", "Deployment");
    let readiness = &crate::chart::container(&deployment)["readinessProbe"];
    assert_eq!(readiness["exec"]["command"][1], "health");
}

#[test]
fn pods_have_no_rights_that_they_do_not_need() {
    for set in ["default", "fleet", "tls", "ledger"] {
        let deployment = manifest(set, "Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            container(&deployment)["securityContext"],
            json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            })
        );
    }
}

#[test]
fn admin_door_knows_the_names_of_its_service() {
    let config = manifest("fleet", "ConfigMap");
    let config = documents(config["data"]["tollgate.yaml"].as_str().unwrap());
    assert_eq!(
        config[0]["server"]["admin"]["hosts"],
        json!([
            "limits-tollgate",
            "limits-tollgate.edge",
            "limits-tollgate.edge.svc",
            "limits-tollgate.edge.svc.cluster.local",
            "limits.example.com",
        ])
    );
    // What the user wrote is merged with what the chart knows.
    assert_eq!(
        config[0]["server"]["resp"],
        json!({"address": "0.0.0.0:6390", "password": "${RESP_PASSWORD}"})
    );
    let policy = manifest("fleet", "NetworkPolicy");
    let operators = &policy["spec"]["ingress"][2];
    assert_eq!(
        operators["ports"],
        json!([{"port": "admin", "protocol": "TCP"}])
    );
}

#[test]
fn gateway_is_a_door_of_the_pods_and_of_the_service() {
    let config = manifest("fleet", "ConfigMap");
    let config = documents(config["data"]["tollgate.yaml"].as_str().unwrap());
    assert_eq!(
        config[0]["server"]["gateway"],
        json!({"address": "0.0.0.0:8000"})
    );
    let has_gateway = |ports: &Value| {
        let mut ports = ports.as_array().unwrap().iter();
        ports.any(|it| it["name"] == "gateway" || it["port"] == "gateway")
    };
    let deployment = manifest("fleet", "Deployment");
    assert!(has_gateway(&container(&deployment)["ports"]));
    assert!(has_gateway(&manifest("fleet", "Service")["spec"]["ports"]));
    let policy = manifest("fleet", "NetworkPolicy");
    assert!(has_gateway(&policy["spec"]["ingress"][0]["ports"]));
    let service = manifest("default", "Service");
    assert!(!has_gateway(&service["spec"]["ports"]));
}

#[test]
fn metrics_of_a_door_with_tokens_are_scraped_with_a_token() {
    let monitor = manifest("fleet", "ServiceMonitor");
    let endpoint = &monitor["spec"]["endpoints"][0];
    assert_eq!(endpoint["port"], "admin");
    assert_eq!(
        endpoint["authorization"],
        json!({"type": "Bearer", "credentials": {"name": "tollgate-scrape", "key": "token"}})
    );
    let policy = manifest("fleet", "NetworkPolicy");
    assert_eq!(
        policy["spec"]["ingress"][3]["ports"],
        json!([{"port": "admin", "protocol": "TCP"}])
    );
    let monitor = manifest("tls", "ServiceMonitor");
    let endpoint = &monitor["spec"]["endpoints"][0];
    assert_eq!(endpoint["port"], "http");
    assert_eq!(endpoint["authorization"], Value::Null);
}

#[test]
fn network_policy_lets_the_pod_of_helm_test_in() {
    let test = manifest("fleet", "Pod");
    let labels = &test["metadata"]["labels"];
    let policy = manifest("fleet", "NetworkPolicy");
    let allowed = &policy["spec"]["ingress"][1];
    let wanted = &allowed["from"][0]["podSelector"]["matchLabels"];
    for (name, value) in wanted.as_object().unwrap() {
        assert_eq!(&labels[name], value);
    }
    assert_eq!(
        allowed["ports"],
        json!([{"port": "http", "protocol": "TCP"}])
    );
    // The policy and the service are not about that pod.
    let own = &policy["spec"]["podSelector"]["matchLabels"];
    assert_ne!(
        own["app.kubernetes.io/name"],
        labels["app.kubernetes.io/name"]
    );
}

#[test]
fn a_new_secret_restarts_the_pods_and_a_new_config_does_not() {
    let pods = |set: &str| {
        let mut template = helm(&[
            "template",
            "limits",
            "--set",
            "secret.values.TOLLGATE_SECRET=a",
        ]);
        let documents = documents(&run(template.args(["--set", set])));
        let deployment = documents.into_iter().find(|it| it["kind"] == "Deployment");
        deployment.unwrap()["spec"]["template"].clone()
    };
    let before = pods("config.namespace=a");
    assert_eq!(before, pods("config.namespace=b"));
    assert_ne!(before, pods("secret.values.TOLLGATE_SECRET=b"));
}

#[test]
fn chart_has_the_version_of_the_program() {
    let chart = fs::read_to_string(checkout("deploy/helm/tollgate/Chart.yaml")).unwrap();
    let chart = &documents(&chart)[0];
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}
