//! Man pages and shell completions, made from the command line's own description.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;

use crate::options::{Cli, CompletionsOptions, ManOptions};
use crate::refusal::refuse;
use crate::stdout;

const NAME: &str = "parcagpu";

/// `parcagpu completions`
pub fn completions(options: &CompletionsOptions) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), NAME, &mut script);
    stdout::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// `parcagpu man`
pub fn man(options: &ManOptions) -> Result<ExitCode> {
    stdout::print(&page(options.command.as_deref())?)?;
    Ok(ExitCode::SUCCESS)
}

fn page(command: Option<&str>) -> Result<String> {
    let all = Cli::command();
    let described = match command {
        None => all,
        Some(name) => {
            let found = all.find_subcommand(name).cloned();
            let shown = all.get_subcommands().filter(|c| !c.is_hide_set());
            let names: Vec<&str> = shown.map(|c| c.get_name()).collect();
            let found = found.ok_or_else(|| {
                refuse(format!(
                    "there is no command {name}; the commands are: {}",
                    names.join(", ")
                ))
            })?;
            // The page is called as one would ask for it.
            let title: &'static str = Box::leak(format!("{NAME}-{name}").into_boxed_str());
            found.name(title).version(env!("CARGO_PKG_VERSION"))
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(described).render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let whole = page(None).unwrap();
        assert!(whole.contains(".TH parcagpu 1") && whole.contains("Exit status"));
        for command in Cli::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let name = command.get_name();
            let page = page(Some(name)).unwrap();
            assert!(page.contains(&format!(".TH parcagpu-{name} 1")), "{page}");
            assert!(page.contains("Examples:"), "{name}");
            assert!(whole.contains(name));
        }
        let error = page(Some("nothing")).unwrap_err().to_string();
        assert!(
            error.contains("no command nothing; the commands are: trace, top, run,"),
            "{error}"
        );
    }
}
