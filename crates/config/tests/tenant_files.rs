//! Tenants in separate files: a directory, a table, rows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use tollgate_config::{Attributes, Config, ConfigError, RequestLimits, load, other_paths};
use tollgate_core::{Keyring, Limit};

const CONFIG: &str = "
version: 1
plans:
  free: { api: { burst: 5 } }
  pro: { api: { burst: 50 } }
tenants:
  first: { plan: pro }
tenant_files: [tenants.d, table.csv, rows.json]
rules:
  - { id: api, per: [tenant], algorithm: gcra, rate: 10/s, burst: 1 }
  - { id: a.b, per: [tenant], algorithm: fixed-window, limit: 9, window: 1m }
";

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("tenants.d")).unwrap();
    let defaults = [
        ("rules.yaml", CONFIG),
        (
            "tenants.d/a.yaml",
            "ann: { plan: free }\nbob: { plan: pro, overrides: { api: { burst: 51 } } }\n",
        ),
        ("tenants.d/b.yml", "cat: {}\n"),
        ("tenants.d/.hidden.yaml", "not: [read"),
        ("tenants.d/README", "not read"),
        (
            "table.csv",
            "tenant,plan,api.burst,a.b.limit\ndan,free,,\r\n\"eve, inc\",pro, 60 ,unlimited\n\nfay,,7,\n",
        ),
        (
            "rows.json",
            r#"[{ "tenant": "gus", "plan": "pro" }, { "tenant": "hal", "overrides": { "a.b": { "limit": 3 } } }]"#,
        ),
    ];
    for (name, text) in defaults.iter().chain(files) {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn read(files: &[(&str, &str)]) -> Result<Config, ConfigError> {
    load(&folder(files).path().join("rules.yaml"))
}

/// Returns the problems of these files, without the name of the folder.
fn wrong(files: &[(&str, &str)]) -> String {
    let folder = folder(files);
    let error = load(&folder.path().join("rules.yaml")).unwrap_err();
    let prefix = format!("{}/", folder.path().display());
    error.to_string().replace(&prefix, "")
}

fn capacities(config: &Config, tenant: &str) -> Vec<u64> {
    let rules = config.compile(Keyring::new(b"0123456789abcdef", "test"), &[]);
    let request_limits = RequestLimits::default();
    let request = Attributes::from([("tenant", tenant)]);
    let charges = rules.resolve(&request, &request_limits).charges;
    charges.iter().map(|it| it.limit.capacity()).collect()
}

#[test]
fn all_forms_of_tenant_files_are_read_alike() {
    let config = read(&[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.policy.tiers.tenants(), 9);
    for (tenant, api, ab) in [
        ("first", 50, 9),
        ("ann", 5, 9),
        ("bob", 51, 9),
        ("cat", 1, 9),
        ("dan", 5, 9),
        ("eve, inc", 60, u64::MAX),
        ("fay", 7, 9),
        ("gus", 50, 9),
        ("hal", 1, 3),
        ("nobody", 1, 9),
    ] {
        assert_eq!(capacities(&config, tenant), [api, ab], "{tenant}");
    }
    let names: Vec<_> = config
        .other_files()
        .iter()
        .map(|path| path.file_name().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["a.yaml", "b.yml", "table.csv", "rows.json"]);
}

#[test]
fn zones_are_read_from_every_form() {
    let quota = "  - { id: q, per: [tenant], algorithm: quota, limit: 5, period: day }\n";
    let config = read(&[
        ("rules.yaml", &format!("{CONFIG}{quota}")),
        ("tenants.d/b.yml", "cat: { timezone: Europe/Berlin }\n"),
        (
            "table.csv",
            "tenant,timezone,q.limit,q.timezone\ndan,America/New_York,,\neve,,9,Asia/Tokyo\n",
        ),
        ("rows.json", r#"[{ "tenant": "gus", "timezone": "utc" }]"#),
    ]);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let rules = config.compile(Keyring::new(b"0123456789abcdef", "test"), &[]);
    for (tenant, limit, zone) in [
        ("cat", 5, "Europe/Berlin"),
        ("dan", 5, "America/New_York"),
        ("eve", 9, "Asia/Tokyo"),
        ("gus", 5, "UTC"),
        ("ann", 5, "UTC"),
    ] {
        let request_limits = RequestLimits::default();
        let request = Attributes::from([("tenant", tenant)]);
        let charges = rules.resolve(&request, &request_limits).charges;
        let Limit::Quota(quota) = charges[2].limit else {
            panic!("{:?}", charges[2]);
        };
        let found = (quota.limit(), quota.calendar().zone().name());
        assert_eq!(found, (limit, zone), "{tenant}");
    }
}

#[test]
fn the_version_names_the_tenants_too() {
    let before = read(&[]).unwrap().policy.version;
    assert_eq!(read(&[]).unwrap().policy.version, before);
    let after = read(&[("tenants.d/b.yml", "cat: { plan: pro }\n")]).unwrap();
    assert_ne!(after.policy.version, before);
}

#[test]
fn wrong_tenant_files_are_rejected_with_the_place() {
    for (files, expected) in [
        (
            [("table.csv", "tenant,plan\ndan,fre\n")],
            "table.csv:2:5: there is no plan `fre`",
        ),
        (
            [("table.csv", "tenant,plan\ndan,free,5\n")],
            "table.csv:2:10: this row has more cells than there are columns (2)",
        ),
        (
            [("table.csv", "tenant,burst\ndan,5\n")],
            "table.csv:1:8: `burst` is not the name of a column",
        ),
        (
            [("table.csv", "tenant,tenant\n")],
            "table.csv:1:8: the column `tenant` is given twice",
        ),
        (
            [("table.csv", "plan\nfree\n")],
            "table.csv:1:1: there is no column `tenant`",
        ),
        (
            [("table.csv", "tenant,plan\n,free\n")],
            "table.csv:2:1: this row has no tenant",
        ),
        (
            [("table.csv", "tenant\n\"dan\n")],
            "table.csv:2:1: a quote is not closed",
        ),
        ([("table.csv", "")], "table.csv:1:1: the table is empty"),
        (
            [("table.csv", "tenant,api.burst\ndan, \"50\"00\n")],
            "table.csv:2:10: there is text after the closing quote",
        ),
        (
            [("table.csv", "tenant,api.brust\ndan,5\n")],
            "table.csv:1:8: `brust` is not a field of numbers",
        ),
        (
            [("table.csv", "tenant,apy.burst\ndan,5\n")],
            "table.csv:1:8: there is no rule or budget `apy`",
        ),
        (
            [("table.csv", "tenant,api.burst\ndan,many\n")],
            "table.csv:2:5: `many` is not a whole number",
        ),
        (
            [("table.csv", "tenant,timezone\ndan,Europe/Berln\n")],
            "table.csv:2:5: there is no time zone `Europe/Berln`",
        ),
        (
            [("table.csv", "tenant\ndan\ndan\n")],
            "table.csv:3:1: the tenant `dan` is given twice",
        ),
        (
            [("table.csv", "tenant\nann\n")],
            "the tenant `ann` is given twice",
        ),
        (
            [("table.csv", "tenant\nann\n")],
            "it is also in tenants.d/a.yaml",
        ),
        (
            [("table.csv", "tenant\nfirst\n")],
            "it is also in the config",
        ),
        (
            [("rows.json", "[5]")],
            "rows.json:1:2: expected a tenant, a map of names to values, found `5`",
        ),
        (
            [("rows.json", "[{}]")],
            "rows.json:1:2: this row has no `tenant`",
        ),
        ([("rows.json", "5")], "rows.json:1:1: expected a map"),
        (
            [("tenants.d/a.yaml", "ann: { plan: [")],
            "tenants.d/a.yaml:",
        ),
    ] {
        let found = wrong(&files);
        assert!(found.contains(expected), "{files:?}\n{expected}\n{found}");
    }
    let absent = CONFIG.replace("table.csv", "absent.csv");
    let found = wrong(&[("rules.yaml", &absent)]);
    assert!(
        found.contains("absent.csv: cannot read the tenant file"),
        "{found}"
    );
    let other = CONFIG.replace("table.csv", "table.txt");
    let found = wrong(&[("rules.yaml", &other)]);
    assert!(
        found.contains("end it with .yaml, .yml, .json or .csv"),
        "{found}"
    );
    assert!(load(Path::new("/nowhere/rules.yaml")).is_err());
}

#[test]
fn tenant_paths_of_a_rejected_config_are_known() {
    let named = |files: &[(&str, &str)]| -> Vec<String> {
        let folder = folder(files);
        let paths = other_paths(&folder.path().join("rules.yaml"));
        let names = paths.iter().map(|it| it.strip_prefix(&folder).unwrap());
        names.map(|it| it.display().to_string()).collect()
    };
    let all = [
        "tenants.d/a.yaml",
        "tenants.d/b.yml",
        "tenants.d",
        "table.csv",
        "rows.json",
    ];
    assert_eq!(named(&[]), all);
    assert_eq!(named(&[("table.csv", "nobody\n")]), all);
    assert_eq!(
        named(&[("rules.yaml", &CONFIG.replace("10/s", "often"))]),
        all
    );
    let absent = CONFIG.replace("rows.json", "absent.json");
    assert_eq!(named(&[("rules.yaml", &absent)])[4], "absent.json");
    assert_eq!(named(&[("rules.yaml", "tenant_files: [")]), [""; 0]);
    assert!(other_paths(Path::new("/nowhere/rules.yaml")).is_empty());
}
