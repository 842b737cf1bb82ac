//! A server whose config is a file, with the HTTP door, the gRPC door and the admin door. Nothing
//! watches the file: a test says when to check it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate::Engine;
use tollgate_config::Listen;
use tollgate_server::audit::Audit;
use tollgate_server::control::{Change, ReloadError, Source};
use tollgate_server::net::Listener;
use tollgate_server::{ControlPlane, admin, grpc, http};

use super::{Answer, get, post};

pub(crate) struct ConfigFileServer {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) control: Arc<ControlPlane>,
    pub(crate) folder: tempfile::TempDir,
    runtime: Option<tokio::runtime::Runtime>,
}

impl ConfigFileServer {
    pub(crate) fn start(yaml: &str) -> ConfigFileServer {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, yaml).unwrap();
        ConfigFileServer::at(folder, &path)
    }

    /// Starts a server with the config at `path`. Keeps `folder` until the server is dropped.
    pub(crate) fn at(folder: tempfile::TempDir, path: &Path) -> ConfigFileServer {
        let source = Source::new(path.to_owned());
        let config = tollgate_config::load(path).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (control, [http, grpc, admin]) = runtime.block_on(async {
            let engine = Arc::new(Engine::start(&config).await.unwrap());
            let data = folder.path().join("data");
            let audit = Audit::of(&data, &engine).unwrap();
            let control = ControlPlane::new(Arc::clone(&engine), Some(source), audit);
            let control = Arc::new(control.with_overrides(&data));
            let any = Listen::new(SocketAddr::from(([127, 0, 0, 1], 0)), None);
            let [http, grpc, admin] = [
                Listener::open(&any, http::PROTOCOLS).await.unwrap(),
                Listener::open(&any, grpc::PROTOCOLS).await.unwrap(),
                Listener::open(&any, http::PROTOCOLS).await.unwrap(),
            ];
            let addresses = [&http, &grpc, &admin].map(|it| it.local_addr().unwrap());
            let never = std::future::pending;
            tokio::spawn(http::serve(http, Arc::clone(&control), never()));
            tokio::spawn(grpc::serve(grpc, engine, never()));
            tokio::spawn(admin::serve(admin, Arc::clone(&control), never()));
            (control, addresses)
        });
        ConfigFileServer {
            http,
            grpc,
            admin,
            control,
            folder,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("rules.yaml")
    }

    /// Writes another text to the file.
    pub(crate) fn write(&self, yaml: &str) {
        std::fs::write(self.file(), yaml).unwrap();
    }

    /// Checks whether the file has changed.
    pub(crate) fn look(&self) -> Option<Result<Change, ReloadError>> {
        self.block_on(self.control.look())
    }

    pub(crate) fn check(&self, attributes: &str) -> Answer {
        let url = format!("http://{}/v1/check", self.http);
        post(&url, &format!(r#"{{"attributes":{attributes}}}"#), &[])
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        get(&format!("http://{}{path}", self.http), &[])
    }

    /// Asks the admin door; by GET without a body.
    pub(crate) fn ask(&self, token: &str, path: &str, body: Option<&str>) -> Answer {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str())];
        let url = format!("http://{}{path}", self.admin);
        match body {
            None => get(&url, &headers),
            Some(body) => post(&url, body, &headers),
        }
    }

    pub(crate) fn reload(&self) -> Answer {
        self.ask("", "/v1/reload", Some(""))
    }

    /// Reads the audit trail, the newest entry first.
    pub(crate) fn trail(&self, query: &str) -> Vec<serde_json::Value> {
        let answer = self.ask("", &format!("/v1/audit?{query}"), None);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["entries"].as_array().unwrap().clone()
    }
}

impl Drop for ConfigFileServer {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}
