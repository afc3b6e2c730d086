//! Draws the screen.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as TextLine, Span, Text};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table, Wrap};

use super::rows::{Line, SampleLine};
use super::screen::{Filter, Screen, Tab};
use super::view::Facts;
use crate::ledger::coverage;
use crate::text::{clock_ns, count, plural, time_of_day};

const KEYS: &str = "Tab 1-5 view  ? help  q quit  Left/Right sort by  r reverse  Up/Down row  Enter kernels of it  Esc back";

const HELP: &str = "\
Keys
  Tab, Shift-Tab, 1 to 5     processes, devices, kernels, NVTX ranges, PC samples
  Left, Right                column to sort by (its head is marked)
  r                          turn the order around
  Up, Down, PgUp, PgDn, Home, End
  Enter                      kernels of the process or device under the cursor
  Esc                        back to all
  ?                          this text
  q, Ctrl-C                  end; the table of everything is printed then

Numbers
  SAMPLED    launches told to this program, of all launches since it came
  GPU TIME, TOTAL, SHARE, BUSY
             plain: everything was sampled, this is all of it
             ~      an estimate: times of the sampled launches, multiplied by launches to sampled
                    launches (eager and graph launches apart)
             -      not known
  BUSY       part of the last 5 s (up to 2 s ago) in which a kernel ran; overlapping kernels of one
             process count once, in an estimate more often
  RECORDS    kernel records of sampled launches; MEAN is over those that have times
  LOST       what the library lost; events that found this program's buffer full are in the head";

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    /// NO_COLOR is not set.
    pub colours: bool,
}

impl Paint {
    fn style(self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
}

/// Draws everything. `notes`: what there is to say, the latest last.
pub fn draw(
    frame: &mut Frame<'_>,
    screen: &mut Screen,
    facts: &Facts<'_>,
    samples: Vec<SampleLine>,
    notes: &[String],
    paint: Paint,
) {
    let [head, tabs, body, note, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(head_line(facts, paint), head);
    frame.render_widget(tab_line(screen, facts, paint), tabs);
    if screen.help {
        frame.render_widget(Clear, body);
        frame.render_widget(Paragraph::new(HELP), body);
    } else {
        rows(frame, body, screen, facts, samples, paint);
    }
    let text = notes.last().map_or("", String::as_str);
    frame.render_widget(Span::styled(text, paint.style(Color::Yellow)), note);
    frame.render_widget(
        Span::styled(KEYS, Style::new().add_modifier(Modifier::DIM)),
        keys,
    );
}

fn head_line(facts: &Facts<'_>, paint: Paint) -> TextLine<'static> {
    let time = time_of_day(clock_ns(libc::CLOCK_REALTIME));
    let (mut told, mut seen, mut rate) = (0, Some(0u64), Some(0.0));
    let lines = facts.processes();
    for line in &lines {
        told += line.sampled.0;
        seen = seen.and_then(|sum| Some(sum + line.sampled.1?.max(line.sampled.0)));
        rate = rate.and_then(|sum: f64| Some(sum + line.launches?));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate that fits, not below 0"
    )]
    let rate = rate.map_or_else(|| "-".to_owned(), |r| count(r.round() as u64));
    let sample = coverage(told, seen)
        .split(';')
        .next()
        .unwrap_or("")
        .to_owned();
    let mut spans = vec![
        Span::styled("parcagpu top", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            " {} UTC  {}  {rate} launches/s  {sample}  ",
            &time[..8],
            plural(lines.len() as u64, "process"),
        )),
    ];
    if facts.dropped > 0 {
        let style = paint.style(Color::Red).add_modifier(Modifier::BOLD);
        let text = format!(
            "{} dropped: the buffer was full (--ring-mib)",
            plural(facts.dropped, "event")
        );
        spans.push(Span::styled(text, style));
    }
    spans.into()
}

fn tab_line(screen: &Screen, facts: &Facts<'_>, paint: Paint) -> TextLine<'static> {
    let mut spans = Vec::new();
    for (i, tab) in Tab::ALL.iter().enumerate() {
        let style = if *tab == screen.tab {
            paint.style(Color::Cyan).add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        spans.push(Span::styled(format!(" {} {} ", i + 1, tab.title()), style));
        spans.push(Span::raw(" "));
    }
    let only = match &screen.filter {
        Filter::All => None,
        Filter::Process(id) => {
            let comm = facts.ledger.entry(id.pid).map_or("?", |e| e.comm.as_str());
            Some(format!(
                " only PID {} ({}), Esc: all",
                id.pid,
                crate::demangle::clean(comm)
            ))
        }
        Filter::Device(device) => Some(format!(" only {device}, Esc: all")),
    };
    if let (Some(only), Tab::Kernels | Tab::Ranges | Tab::Samples) = (only, screen.tab) {
        spans.push(Span::styled(only, paint.style(Color::Yellow)));
    }
    spans.into()
}

fn rows(
    frame: &mut Frame<'_>,
    area: Rect,
    screen: &mut Screen,
    facts: &Facts<'_>,
    samples: Vec<SampleLine>,
    paint: Paint,
) {
    match screen.tab {
        Tab::Processes => table(frame, area, screen, facts.processes(), paint),
        Tab::Devices => table(frame, area, screen, facts.devices(), paint),
        Tab::Kernels => table(frame, area, screen, facts.kernels(&screen.filter), paint),
        Tab::Ranges => table(frame, area, screen, facts.ranges(&screen.filter), paint),
        Tab::Samples if samples.is_empty() => {
            let why = facts.why_no_samples();
            frame.render_widget(Paragraph::new(why).wrap(Wrap { trim: true }), area);
        }
        Tab::Samples => table(frame, area, screen, samples, paint),
    }
}

fn nothing(tab: Tab) -> &'static str {
    match tab {
        Tab::Processes => "no process has the library yet; those that come appear here",
        Tab::Samples => "no PC sample yet",
        Tab::Devices | Tab::Kernels => "no kernel yet",
        Tab::Ranges => {
            "no NVTX ranges yet: does the program make any, and is NVTX_INJECTION64_PATH set to the library?"
        }
    }
}

fn table<L: Line>(
    frame: &mut Frame<'_>,
    area: Rect,
    screen: &mut Screen,
    lines: Vec<L>,
    paint: Paint,
) {
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let tab = screen.tab;
    screen.height = height;
    let look = screen.look();
    let mut keyed: Vec<_> = lines.into_iter().map(|l| (l.key(look.sort), l)).collect();
    keyed.sort_by(|(a, _), (b, _)| {
        let order = a.order(b);
        if look.falling { order.reverse() } else { order }
    });
    // The cursor stays with its row, wherever that went.
    let found = look
        .cursor
        .as_ref()
        .and_then(|id| keyed.iter().position(|(_, l)| l.id() == *id));
    look.at = found.unwrap_or(look.at).min(keyed.len().saturating_sub(1));
    look.offset = look
        .offset
        .clamp(look.at.saturating_sub(height - 1), look.at);
    let (sort, falling, at, offset) = (look.sort, look.falling, look.at, look.offset);
    screen.drawn = keyed.iter().map(|(_, l)| l.id()).collect();
    if keyed.is_empty() {
        frame.render_widget(Paragraph::new(nothing(tab)), area);
        return;
    }
    let head = L::COLUMNS.iter().enumerate().map(|(i, column)| {
        let mark = match (i == sort, falling) {
            (false, _) => "",
            (true, true) => "▼",
            (true, false) => "▲",
        };
        aligned(format!("{}{mark}", column.title), column.number)
    });
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::BOLD));
    let body = keyed
        .iter()
        .enumerate()
        .skip(offset)
        .take(height)
        .map(|(i, (_, line))| {
            let cells = L::COLUMNS
                .iter()
                .enumerate()
                .map(|(c, column)| aligned(line.cell(c), column.number));
            let style = if i == at {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                Style::new()
            };
            Row::new(cells).style(style)
        });
    let widths = L::COLUMNS.iter().map(|c| match c.width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let table = Table::new(body, widths)
        .header(head)
        .column_spacing(1)
        .style(paint.style(Color::Reset));
    frame.render_widget(table, area);
}

fn aligned(text: String, right: bool) -> Cell<'static> {
    let alignment = if right {
        Alignment::Right
    } else {
        Alignment::Left
    };
    Cell::new(Text::from(text).alignment(alignment))
}
