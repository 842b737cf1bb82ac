//! Servers of all versions can be downloaded and answer.

use tollgate_rig::{Redis, Version, versions};

#[test]
fn server_of_each_version_answers() {
    for version in Version::ALL {
        let redis = Redis::with().binary(versions::fetch(version)).start();
        let info = redis.info("server");
        let number = info.get("valkey_version").unwrap_or(&info["redis_version"]);
        let name = version.to_string();
        let (_, wanted) = name.split_once('-').unwrap();
        assert!(number.starts_with(wanted), "{version}: {number}");
        assert_eq!(
            redis.connect().command(&["SET", "key", "value"]).text(),
            "OK"
        );
    }
}
