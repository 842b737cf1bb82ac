//! The admin door of a running server, as commands ask it.

use std::time::Duration;

use serde_json::Value;

use crate::shown::shown;

/// Which server, and who asks.
#[derive(clap::Args)]
pub(crate) struct AdminArgs {
    /// The admin door of the server
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:8082"
    )]
    admin: String,

    /// The token to show there, if it wants one; better in the environment than on the command line
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TOLLGATE_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
}

/// How long a question may take that is answered at once.
const SOON: Duration = Duration::from_secs(10);

/// How long one may take that looks at everything.
pub(crate) const LATER: Duration = Duration::from_secs(3600);

/// What is asked of the door.
pub(crate) enum Question<'q> {
    Get,
    /// With these as the query.
    Find(&'q [(&'q str, &'q str)]),
    Post(&'q Value),
    /// With these as the query.
    Delete(&'q [(&'q str, &'q str)]),
}

impl AdminArgs {
    /// What the door answers at `path`; what it complains about is an error, ready to print.
    pub(crate) fn ask(&self, path: &str, question: &Question<'_>) -> Result<Value, String> {
        self.ask_within(SOON, path, question)
    }

    /// The same with a question that takes its time.
    pub(crate) fn ask_within(
        &self,
        time: Duration,
        path: &str,
        question: &Question<'_>,
    ) -> Result<Value, String> {
        let mut response = self.send(time, path, question)?;
        let answer = response.body_mut().read_json();
        answer.map_err(|error| self.unreachable(path, &error))
    }

    /// What the door answers at `path`, to be read while it comes.
    pub(crate) fn read(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<impl std::io::Read + use<>, String> {
        let response = self.send(LATER, path, &Question::Find(query))?;
        Ok(response.into_body().into_reader())
    }

    fn url(&self, path: &str) -> String {
        let scheme = if self.admin.contains("://") {
            ""
        } else {
            "http://"
        };
        format!("{scheme}{}{path}", self.admin.trim_end_matches('/'))
    }

    fn unreachable(&self, path: &str, error: &ureq::Error) -> String {
        let url = self.url(path);
        format!(
            "error: cannot ask {url}: {error}\nhelp: name the admin door of the server with --admin; \
             `server.admin` or `serve --admin` opens it"
        )
    }

    /// An answer that is no complaint.
    fn send(
        &self,
        time: Duration,
        path: &str,
        question: &Question<'_>,
    ) -> Result<ureq::http::Response<ureq::Body>, String> {
        let url = self.url(path);
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(SOON))
            .timeout_global(Some(time))
            .build()
            .into();
        let token = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let answered = match question {
            Question::Get => with(agent.get(&url), token).call(),
            Question::Find(query) => {
                let request = with(agent.get(&url), token);
                request.query_pairs(query.iter().copied()).call()
            }
            Question::Post(body) => with(agent.post(&url), token).send_json(body),
            Question::Delete(query) => {
                let request = with(agent.delete(&url), token);
                request.query_pairs(query.iter().copied()).call()
            }
        };
        let mut response = answered.map_err(|error| self.unreachable(path, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let answer = response.body_mut().read_json();
        let answer: Value = answer.map_err(|error| self.unreachable(path, &error))?;
        Err(complaint(status.as_u16(), &answer))
    }
}

/// What the door complains about, ready to print.
fn complaint(status: u16, answer: &Value) -> String {
    let message = answer["message"].as_str();
    let message = message.map_or_else(|| answer.to_string(), str::to_owned);
    let problems = answer["problems"].as_array();
    let problems = problems.into_iter().flatten().filter_map(|problem| {
        let mut text = format!("error: {}", shown(problem["message"].as_str()?));
        if let Some(help) = problem["help"].as_str() {
            text += &format!("\nhelp: {}", shown(help));
        }
        Some(text)
    });
    let problems: Vec<String> = problems.collect();
    let mut text = match problems.as_slice() {
        [] => format!("error: {}", shown(&message)),
        problems => problems.join("\n"),
    };
    if status == 401 {
        text += "\nhelp: put the token into TOLLGATE_TOKEN";
    }
    text
}

fn with<B>(request: ureq::RequestBuilder<B>, token: Option<String>) -> ureq::RequestBuilder<B> {
    match token {
        Some(token) => request.header("authorization", token),
        None => request,
    }
}
