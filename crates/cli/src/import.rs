//! `tollgate import`: converts configs of other rate limiters.

use std::path::{Path, PathBuf};

use tollgate_import::{Domains, Imported, Source, envoy_ratelimit, limitador};
use tollgate_rules::ConfigError;

use crate::CommandResult;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(clap::Subcommand)]
enum From {
    /// Convert files of Envoy's rate limit service (envoyproxy/ratelimit), each with a domain
    EnvoyRatelimit {
        /// The files
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,

        /// Merge files of the same domain, as the service does with MERGE_DOMAIN_CONFIG
        #[arg(long)]
        merge_domains: bool,
    },
    /// Convert a limits file of Limitador
    Limitador {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let imported = match &args.from {
        From::EnvoyRatelimit {
            files,
            merge_domains,
        } => from_envoy(files, *merge_domains),
        From::Limitador { file } => from_limitador(file),
    };
    let imported = imported.map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(crate::config::render).collect();
        errors.join("\n\n")
    })?;
    for note in &imported.notes {
        eprintln!("{note}");
    }
    if imported.rules == 0 {
        eprintln!("nothing was imported: no limit could be converted");
        return Ok(false);
    }
    print!("{}", imported.yaml);
    Ok(true)
}

fn from_envoy(files: &[PathBuf], merge_domains: bool) -> Result<Imported, Vec<ConfigError>> {
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match tollgate_config::read_text(file) {
            Ok(text) => texts.push((name(file), text)),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let sources: Vec<Source<'_>> = texts
        .iter()
        .map(|(name, text)| Source { name, text })
        .collect();
    let domains = match merge_domains {
        true => Domains::Merged,
        false => Domains::Once,
    };
    envoy_ratelimit(&sources, domains)
}

fn from_limitador(file: &Path) -> Result<Imported, Vec<ConfigError>> {
    let text = tollgate_config::read_text(file).map_err(|error| vec![error])?;
    let name = name(file);
    limitador(&Source {
        name: &name,
        text: &text,
    })
}

fn name(file: &Path) -> String {
    file.display().to_string()
}
