//! `tollgate import`: converts configs of other rate limiters.

use std::path::PathBuf;

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
    let imported = convert(&args.from).map_err(|errors| {
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

fn convert(from: &From) -> Result<Imported, Vec<ConfigError>> {
    let files = match from {
        From::EnvoyRatelimit { files, .. } => files.as_slice(),
        From::Limitador { file } => std::slice::from_ref(file),
    };
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match tollgate_config::read_text(file) {
            Ok(text) => texts.push((file.display().to_string(), text)),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let sources = texts.iter().map(|(name, text)| Source { name, text });
    let sources: Vec<Source<'_>> = sources.collect();
    match from {
        From::EnvoyRatelimit { merge_domains, .. } => match merge_domains {
            true => envoy_ratelimit(&sources, Domains::Merged),
            false => envoy_ratelimit(&sources, Domains::Once),
        },
        From::Limitador { .. } => limitador(&sources[0]),
    }
}
