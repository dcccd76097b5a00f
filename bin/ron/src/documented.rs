//! Checks that every `ron ...` and service command line in the documents and in help texts parses:
//! blocks of shell in Markdown, commands named in prose, examples of `--help`. Finds renamed flags
//! and forgotten subcommands.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;

/// The commands of a shell script, as words. Quotes are removed; comments, redirections and the
/// content of here-documents are left out; commands inside `$(...)` are listed too and leave a `$`
/// in their place.
fn commands(script: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut line = Line::default();
    let mut rest = script;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = line.escaped(rest),
            '\'' => {
                let (inside, after) = rest.split_once('\'').unwrap_or((rest, ""));
                line.text(inside);
                rest = after;
            }
            '"' => rest = double_quoted(rest, &mut line, &mut all),
            '$' if rest.starts_with('(') => rest = substitution(&rest[1..], &mut line, &mut all),
            '#' if line.word.is_none() => rest = rest.find('\n').map_or("", |at| &rest[at..]),
            '<' if rest.starts_with('<') => {
                let (word, after) = rest[1..].split_once('\n').unwrap_or((&rest[1..], ""));
                let end = word.trim_start_matches('-').trim_matches(['\'', '"', ' ']);
                let close = format!("\n{end}");
                rest = after
                    .find(&close)
                    .map_or("", |at| &after[at + close.len()..]);
                line.end(&mut all);
            }
            '<' | '>' => line.redirect(),
            ' ' | '\t' => line.word_ends(),
            '\n' | ';' | '|' | '&' | '(' | ')' => line.end(&mut all),
            c => line.text(c.encode_utf8(&mut [0; 4])),
        }
    }
    line.end(&mut all);
    all
}

/// The command that is being read.
#[derive(Default)]
struct Line {
    words: Vec<String>,
    word: Option<String>,
    /// The next word is the target of a redirection.
    skip: bool,
}

impl Line {
    fn text(&mut self, text: &str) {
        self.word.get_or_insert_default().push_str(text);
    }

    fn escaped<'a>(&mut self, rest: &'a str) -> &'a str {
        let Some(next) = rest.chars().next() else {
            return rest;
        };
        if next != '\n' {
            self.text(next.encode_utf8(&mut [0; 4]));
        }
        &rest[next.len_utf8()..]
    }

    fn redirect(&mut self) {
        // The number of a file descriptor belongs to the redirection.
        if self
            .word
            .as_ref()
            .is_some_and(|w| w.bytes().all(|b| b.is_ascii_digit()))
        {
            self.word = None;
        }
        self.word_ends();
        self.skip = true;
    }

    fn word_ends(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.skip) {
            self.words.push(word);
        }
    }

    fn end(&mut self, all: &mut Vec<Vec<String>>) {
        self.word_ends();
        self.skip = false;
        let before = |word: &String| {
            let keywords = [
                "do", "then", "else", "if", "while", "!", "{", "exec", "time", "sudo", "env",
            ];
            let assigned = word.split_once('=').is_some_and(|(name, _)| {
                name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            });
            keywords.contains(&word.as_str()) || assigned
        };
        let words = std::mem::take(&mut self.words);
        let words: Vec<String> = words.into_iter().skip_while(before).collect();
        if !words.is_empty() {
            all.push(words);
        }
    }
}

fn double_quoted<'a>(mut rest: &'a str, line: &mut Line, all: &mut Vec<Vec<String>>) -> &'a str {
    line.text("");
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '"' => return rest,
            '\\' => rest = line.escaped(rest),
            '$' if rest.starts_with('(') => rest = substitution(&rest[1..], line, all),
            c => line.text(c.encode_utf8(&mut [0; 4])),
        }
    }
    rest
}

/// Reads a substitution, from after `$(` to after its `)`.
fn substitution<'a>(rest: &'a str, line: &mut Line, all: &mut Vec<Vec<String>>) -> &'a str {
    let mut depth = 1;
    for (at, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            all.extend(commands(&rest[..at]));
            line.text("$");
            return &rest[at + 1..];
        }
    }
    ""
}

/// The fault of a command, if it is one of this project's. `whole` is false for a command named in
/// prose, which may omit required arguments.
fn fault(words: &[String], whole: bool) -> Option<String> {
    let name = words[0].rsplit('/').next()?;
    let table = ron_services::find(name).map(|service| service.table);
    let command = match table {
        Some(table) => ron_service::command(table),
        None if name == "ron" => crate::examples::command(),
        None => return None,
    };
    let words = words
        .iter()
        .take_while(|word| *word != "..." && *word != "\u{2026}");
    let words: Vec<&String> = words.collect();
    let matches = match command.try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(e) => {
            return match e.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
                ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                | ErrorKind::InvalidValue
                    if !whole =>
                {
                    None
                }
                // A placeholder for a value, such as `$PORT` or `N`, is not checked.
                ErrorKind::ValueValidation | ErrorKind::InvalidValue
                    if words.iter().skip(1).any(|word| placeholder(word)) =>
                {
                    None
                }
                _ => Some(e.to_string()),
            };
        }
    };
    let rows = table?.rows();
    let set = matches.get_many::<String>("set").into_iter().flatten();
    let unknown = set
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| !rows.iter().any(|row| row.name == *key));
    unknown.map(|(key, _)| format!("--set {key}: no such configuration key"))
}

fn placeholder(word: &str) -> bool {
    word.contains('$') || (!word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase()))
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable directory") {
        let path = entry.expect("a readable directory").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && name != "target" && name != "node_modules" && !name.starts_with('.') {
            pages(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// The shell text of a page: scripts in fenced blocks, and commands named in prose.
fn shell(page: &str) -> (Vec<String>, Vec<String>) {
    let (mut scripts, mut prose) = (Vec::new(), Vec::new());
    let mut fence: Option<(&str, String)> = None;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &mut fence) {
            (Some(tag), None) => fence = Some((tag, String::new())),
            (Some(_), Some(_)) => {
                let (tag, text) = fence.take().expect("just seen");
                if matches!(tag, "sh" | "bash" | "console") {
                    scripts.push(text);
                }
            }
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => prose.extend(line.split('`').skip(1).step_by(2).map(str::to_owned)),
        }
    }
    (scripts, prose)
}

#[test]
fn every_command_in_the_documents_is_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    pages(&root, &mut found);
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in &found {
        let page = fs::read_to_string(path).expect("a readable page");
        let (scripts, prose) = shell(&page);
        let texts = scripts.iter().map(|s| (s, true));
        for (text, whole) in texts.chain(prose.iter().map(|s| (s, false))) {
            for words in commands(text) {
                seen += usize::from(words[0].ends_with("ron"));
                if let Some(why) = fault(&words, whole) {
                    wrong.push(format!("{}: {}\n{why}", path.display(), words.join(" ")));
                }
            }
        }
    }
    assert!(seen > 30, "only {seen} commands were seen");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The examples of a command and of those below it.
fn examples(command: &Command, wrong: &mut Vec<String>) -> usize {
    let help = [command.get_after_help(), command.get_after_long_help()];
    let texts = help.iter().flatten().map(ToString::to_string);
    let mut seen = 0;
    for text in texts {
        for line in text.lines().filter(|line| line.starts_with("  ")) {
            for words in commands(line.trim()) {
                seen += usize::from(words[0] == "ron");
                if let Some(why) = fault(&words, true) {
                    wrong.push(format!("{}: {line}\n{why}", command.get_name()));
                }
            }
        }
    }
    seen + command
        .get_subcommands()
        .map(|c| examples(c, wrong))
        .sum::<usize>()
}

#[test]
fn every_example_of_help_is_taken() {
    let mut wrong = Vec::new();
    let seen = examples(&crate::examples::command(), &mut wrong);
    assert!(seen > 5, "only {seen} examples were seen");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn scripts_are_read_as_a_shell_reads_them() {
    let script = "T=$(ron token --audience \"svc x\") # ron no\nfor s in a b; do\n  A=1 ./x/ron up --data-dir '/a b' \\\n    --base-port 0 2>/dev/null | tee f &\ndone\ncat <<EOF\nron nothing\nEOF\nron man >f";
    let read: Vec<String> = commands(script).iter().map(|w| w.join("|")).collect();
    let wanted = [
        "ron|token|--audience|svc x",
        "for|s|in|a|b",
        "./x/ron|up|--data-dir|/a b|--base-port|0",
        "tee|f",
        "done",
        "cat",
        "ron|man",
    ];
    assert_eq!(read, wanted);
}

#[test]
fn a_stale_flag_a_lost_subcommand_and_a_misspelt_key_are_found() {
    let of = |text: &str, whole| fault(&commands(text)[0], whole);
    assert_eq!(of("ron doctor --json", true), None);
    assert!(of("ron doctor --jsn", true).is_some());
    assert!(of("ron doctr", false).is_some());
    assert!(of("ron policy sign", true).is_some(), "it needs more");
    assert_eq!(
        of("ron policy sign", false),
        None,
        "prose may leave that out"
    );
    assert_eq!(of("curl --no-such", true), None, "not ours");
    assert_eq!(of("ron-kms --config F --set signers=2", true), None);
    assert!(of("ron-kms --set signrs=2", true).is_some());
    assert_eq!(of("ron up --base-port N", true), None, "a placeholder");
}
