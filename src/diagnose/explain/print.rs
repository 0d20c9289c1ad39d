//! An explanation as text and as JSON.

use std::collections::HashMap;
use std::fmt;

use serde_json::Value;
use trace::{Leg, Place, Step};

use super::{Explained, Onward, is_match, owner_in_brackets};
use crate::diagnose::explain::answer::Verdict;
use crate::diagnose::output::json::object;
use crate::diagnose::output::page::{Page, Style};
use crate::diagnose::output::words;

/// The text has only so many rules in a row that do not match; there may be thousands.
const MOST: usize = 20;

/// For people.
impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&Page::default()))
    }
}

impl Explained<'_> {
    /// The fate in one line: the verdict, and the users who get another verdict, where the rules exempt somebody and
    /// the connection may be theirs.
    pub fn answer(&self) -> String {
        let mut answer = self.verdict.to_string();
        if let Some(stray) = self.stray {
            answer += &format!(", if other hosts send it here: this network namespace does not have {stray}");
        }
        if !self.exceptions.is_empty() {
            answer += &format!(", except {}", self.exceptions.join(" and "));
        }
        if let Some((limit, others)) = self.limits.split_first() {
            answer += &format!(", unless the limit of {limit} is reached");
            if !others.is_empty() {
                answer += &format!(", or one of {} others", others.len());
            }
        }
        if let Some(loss) = self.onward.as_ref().and_then(Onward::loss) {
            answer += &format!("; then from the proxy: {loss}");
        } else if let Some(doubt) = self.onward.as_ref().and_then(Onward::doubt) {
            answer += &format!("; then from the proxy: not known: {doubt}");
        }
        answer
    }

    /// For machines; docs/commands.md has the schema.
    pub fn json(&self) -> String {
        let port = match &self.verdict {
            Verdict::Proxy(port) => Some(*port),
            _ => None,
        };
        let by = self.by.as_ref();
        object(vec![
            ("schema", 1.into()),
            ("verdict", verdict_in_json(&self.verdict).into()),
            ("answer", self.answer().into()),
            ("port", port.into()),
            ("rule", by.map(|by| by.rule.as_str()).into()),
            ("mode", by.and_then(|by| by.mode).map(|mode| mode.to_string()).into()),
            ("connection", self.connection.as_str().into()),
            ("then", self.onward.as_ref().map(onward_json).into()),
            ("warnings", self.all_warnings().into()),
            ("steps", self.steps.iter().map(|step| self.step_json(step)).collect()),
        ])
        .to_string()
    }

    fn all_warnings(&self) -> Vec<String> {
        self.table_warnings.iter().cloned().chain(self.warnings.iter().map(ToString::to_string)).collect()
    }

    pub(in crate::diagnose) fn text(&self, page: &Page) -> String {
        // The first line is the answer, whole: scripts read it.
        let answer = page.paint(verdict_style(&self.verdict), &self.answer());
        let mut text = format!("{answer}\n{}", page.fill_lines(&self.connection));
        if let Some(by) = &self.by {
            text += &format!("by {}\n", by.text(page));
        } else if self.verdict == Verdict::Bypass {
            text += "no rule sends it to the proxy\n";
        }
        if let Some(onward) = &self.onward
            && let Some(by) = onward.by.as_ref().filter(|_| onward.loss().is_some())
        {
            text += &format!("then as user {}, by {}\n", onward.uid, by.text(page));
        }
        for warning in self.all_warnings() {
            text += &page.paragraph(Style::Trouble, &format!("warning: {warning}"), 2);
        }
        let mut before: Option<&Step<'_>> = None;
        let mut left_out = 0;
        let mut in_a_row = 0;
        for step in merge_repeated(&self.steps.iter().collect::<Vec<_>>()) {
            let is_same_chain = before.is_some_and(|before| {
                (before.packet, before.hook, before.depth) == (step.packet, step.hook, step.depth)
                    && before.at.is_in_chain_of(&step.at)
            });
            in_a_row = match (is_same_chain, is_match(step)) {
                (true, Some(false)) => in_a_row + 1,
                _ => 0,
            };
            if in_a_row >= MOST {
                left_out += 1;
                continue;
            }
            end_row(&mut text, before, &mut left_out);
            self.write_step(&mut text, step, before, page);
            before = Some(step);
        }
        end_row(&mut text, before, &mut left_out);
        text
    }

    /// Adds a step's line, after a line for the chain if that is another one than before. The one that decides is marked.
    fn write_step(&self, text: &mut String, step: &Step<'_>, before: Option<&Step<'_>>, page: &Page) {
        let at = step.at;
        let before = before.filter(|before| (before.packet, before.hook) == (step.packet, step.hook));
        if before.is_none() {
            let (_, whose) = packet_names(step.packet);
            *text += &format!("\n{}\n", page.paint(Style::Bold, &format!("{}{whose}", step.hook)));
        }
        let is_new = before.is_none_or(|before| {
            step.depth > before.depth
                || (step.depth == before.depth && !at.is_in_chain_of(&before.at))
                || (step.depth == 0 && !before.at.table().is(at.table()))
        });
        let indent = indent(step);
        if is_new {
            let above = indent - 2;
            let (table, chain, whose) = (at.table(), at.chain(), owner_in_brackets(at));
            *text += &match chain.base {
                Some(base) => format!("{:above$}{table} {} (priority {}){whose}\n", "", chain.name, base.priority),
                None => format!("{:above$}{}{whose}\n", "", chain.name),
            };
        }
        let (number, matches) = match at {
            Place::Rule(line) => (line.number.to_string(), words::conditions_in_words(line.table, line.rule)),
            Place::Policy(_) => ("-".to_owned(), "policy".to_owned()),
        };
        let matched = match is_match(step) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        let decides = self.at == Some(step.at) && is_match(step) != Some(false);
        let mark = if decides { "=> " } else { "" };
        let start = format!("{mark:>indent$}{number:<3} {matched:<3}  ");
        let mut line = format!("{start}{matches}: {}", self.why(step));
        // Many jumps deep, a few words would be left for a line.
        if start.len() <= page.width / 2 {
            line = page.fold_line(&line, start.len());
        }
        let style = match is_match(step) {
            _ if decides => verdict_style(&self.verdict),
            Some(false) => Style::Dim,
            _ => Style::Plain,
        };
        *text += &page.paint(style, &line);
        text.push('\n');
    }

    fn step_json(&self, step: &Step<'_>) -> Value {
        let at = step.at;
        let rule = at.line().map(|line| line.to_string().trim_end().to_owned());
        object(vec![
            ("packet", packet_names(step.packet).0.into()),
            ("hook", step.hook.to_string().into()),
            ("table", at.table().to_string().into()),
            ("chain", at.chain().name.to_string().into()),
            ("depth", step.depth.into()),
            ("rule", rule.into()),
            ("matched", is_match(step).into()),
            ("why", self.why(step).into()),
        ])
    }
}

fn verdict_in_json(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Proxy(_) => "proxy",
        Verdict::Bypass => "bypass",
        Verdict::Elsewhere(_) => "elsewhere",
        Verdict::Dropped | Verdict::Rejected | Verdict::Lost(_) => "dropped",
        Verdict::NotKnown(_) => "not-known",
    }
}

fn onward_json(onward: &Onward) -> Value {
    object(vec![
        ("uid", onward.uid.into()),
        ("verdict", verdict_in_json(&onward.verdict).into()),
        ("answer", onward.verdict.to_string().into()),
        ("rule", onward.by.as_ref().map(|by| by.rule.as_str()).into()),
    ])
}

/// A packet's name in JSON, and whose hook it is in a heading.
fn packet_names(packet: Leg) -> (&'static str, &'static str) {
    match packet {
        Leg::First => ("first", ""),
        Leg::Reply => ("reply", ", the reply"),
        Leg::Ack => ("ack", ", the ACK after it"),
        Leg::Rejection => ("rejection", ", the rejection of it"),
        Leg::Solicitation => ("solicitation", ", the question of a neighbour"),
        Leg::Advertisement => ("advertisement", ", the answer to it"),
    }
}

fn verdict_style(verdict: &Verdict) -> Style {
    match verdict {
        Verdict::Proxy(_) => Style::Proxy,
        Verdict::Bypass => Style::Bypass,
        _ => Style::Trouble,
    }
}

fn end_row(text: &mut String, before: Option<&Step<'_>>, left_out: &mut usize) {
    if *left_out > 0 {
        let indent = before.map_or(0, indent);
        *text += &format!("{:indent$}... {left_out} more rules that do not match\n", "");
    }
    *left_out = 0;
}

/// Counts the steps after a jump in the chain to which it leads, and in chains to which that chain leads.
fn jump_length(one: &Step<'_>, after: &[&Step<'_>]) -> usize {
    let inside =
        after.iter().take_while(|step| (step.packet, step.hook) == (one.packet, one.hook) && step.depth > one.depth);
    inside.count()
}

/// Each rule once to which a jump leads, though connections of which each has another device pass it one by one.
fn merge_repeated<'s, 'a>(steps: &[&'s Step<'a>]) -> Vec<&'s Step<'a>> {
    let place = |step: &Step<'_>| match step.at {
        Place::Rule(line) => (step.packet, step.hook, std::ptr::from_ref(line.rule).addr()),
        Place::Policy(slot) => (step.packet, step.hook, std::ptr::from_ref(slot.chain).addr()),
    };
    let mut places = HashMap::new();
    let mut merged: Vec<(&'s Step<'a>, Vec<&'s Step<'a>>)> = Vec::new();
    let mut rest = steps;
    while let Some((&step, after)) = rest.split_first() {
        let (inside, others) = after.split_at(jump_length(step, after));
        rest = others;
        let index = *places.entry(place(step)).or_insert(merged.len());
        let Some((known, all_inside)) = merged.get_mut(index) else {
            merged.push((step, inside.to_vec()));
            continue;
        };
        all_inside.extend(inside);
        // An unknown match says more than a known one, and a match more than none.
        let says = |step: &Step<'_>| is_match(step).map_or(2, u8::from);
        if says(step) > says(known) {
            *known = step;
        }
    }
    let whole = merged.into_iter().map(|(step, inside)| (step, merge_repeated(&inside)));
    whole.flat_map(|(step, inside)| std::iter::once(step).chain(inside)).collect()
}

fn indent(step: &Step<'_>) -> usize {
    4 + 4 * step.depth
}
