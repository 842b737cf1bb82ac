//! Calls to a running server, most of them to its admin door, the HTTP API for operators.

use std::time::Duration;

use serde_json::Value;
use ureq::{Agent, Body, RequestBuilder, http::Response};

use crate::terminal::printable;

/// The server to call, and the token to show.
#[derive(Clone, clap::Args)]
pub(crate) struct AdminArgs {
    /// The address of the server's admin door
    #[arg(long, value_name = "URL", env = "TOLLGATE_ADMIN_URL")]
    #[arg(default_value = "http://127.0.0.1:8082")]
    admin: String,

    /// The token for the admin door, if it needs one; safer in the environment than on the command line
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TOLLGATE_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
}

/// The timeout of a call that a server answers quickly.
const SHORT: Duration = Duration::from_secs(10);

/// The timeout of a call that may read the whole ledger.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// A method, with its query or its body.
pub(crate) enum Call<'c> {
    Get(&'c [(&'c str, &'c str)]),
    Post(&'c Value),
    Delete(&'c [(&'c str, &'c str)]),
}

impl AdminArgs {
    /// Returns the same with the address of another server.
    pub(crate) fn at(&self, admin: &str) -> AdminArgs {
        AdminArgs {
            admin: admin.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &str {
        &self.admin
    }

    /// Returns the JSON that the server answers. Errors are ready to print.
    pub(crate) fn call(&self, path: &str, call: &Call<'_>) -> Result<Value, String> {
        self.call_within(SHORT, path, call)
    }

    pub(crate) fn call_within(
        &self,
        timeout: Duration,
        path: &str,
        call: &Call<'_>,
    ) -> Result<Value, String> {
        let mut response = self.send(timeout, path, call)?;
        let body = response.body_mut().read_json();
        body.map_err(|error| self.unreachable(path, &error))
    }

    /// Returns the body of the answer as a stream.
    pub(crate) fn read(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<impl std::io::Read + use<>, String> {
        let response = self.send(LONG, path, &Call::Get(query))?;
        Ok(response.into_body().into_reader())
    }

    fn send(
        &self,
        timeout: Duration,
        path: &str,
        call: &Call<'_>,
    ) -> Result<Response<Body>, String> {
        let (url, agent) = (url(&self.admin, path), agent(timeout));
        let sent = match call {
            Call::Get(query) => self.request(agent.get(&url), query).call(),
            Call::Post(body) => self.request(agent.post(&url), &[]).send_json(body),
            Call::Delete(query) => self.request(agent.delete(&url), query).call(),
        };
        let mut response = sent.map_err(|error| self.unreachable(path, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.body_mut().read_json();
        let body: Value = body.map_err(|error| self.unreachable(path, &error))?;
        Err(describe_error(status.as_u16(), &body))
    }

    /// Adds the query and the token.
    fn request<B>(&self, request: RequestBuilder<B>, query: &[(&str, &str)]) -> RequestBuilder<B> {
        let request = request.query_pairs(query.iter().copied());
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn unreachable(&self, path: &str, error: &ureq::Error) -> String {
        let url = url(&self.admin, path);
        format!(
            "error: request to {url} failed: {error}\nhelp: give the address of the server's admin door with \
             --admin; `server.admin` in the config or `serve --admin` opens this door"
        )
    }
}

/// Makes the URL of `path` on a server. The address of the server may lack the scheme.
pub(crate) fn url(server: &str, path: &str) -> String {
    let scheme = match server.contains("://") {
        true => "",
        false => "http://",
    };
    format!("{scheme}{}{path}", server.trim_end_matches('/'))
}

/// Makes an HTTP client that returns every status as an answer, not as an error.
pub(crate) fn agent(timeout: Duration) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(SHORT))
        .timeout_global(Some(timeout))
        .build()
        .into()
}

/// Returns the elements of the list `name` in an answer; empty if there is no such list.
pub(crate) fn list<'v>(answer: &'v Value, name: &str) -> &'v [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

/// Writes the error in an answer, ready to print.
fn describe_error(status: u16, body: &Value) -> String {
    let problems = list(body, "problems").iter().filter_map(|problem| {
        let mut text = format!("error: {}", printable(problem["message"].as_str()?));
        if let Some(help) = problem["help"].as_str() {
            text += &format!("\nhelp: {}", printable(help));
        }
        Some(text)
    });
    let problems: Vec<String> = problems.collect();
    let mut text = match (problems.as_slice(), body["message"].as_str()) {
        ([], Some(message)) => format!("error: {}", printable(message)),
        ([], None) => format!("error: {}", printable(&body.to_string())),
        (problems, _) => problems.join("\n"),
    };
    if status == 401 {
        text += "\nhelp: set TOLLGATE_TOKEN to the token";
    }
    text
}
