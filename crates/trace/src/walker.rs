//! Takes sets of connections through base chains.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::connections::{Connections, Meeting, lo_name, other_hosts};
use crate::doubt::Doubt;
use crate::evaluate::{Holdings, split_by_conditions};
use crate::order::{Orders, Slot, chains_at, chains_of, is_one_table, orders, places};
use crate::state::{MOST_STATES, State, merge_states};
use crate::step::{Leg, Matched, Open, Outcome, Place, Reason, Step, Treatment, add_shares, join_losses};
use ruleset::flags::CtState;
use ruleset::{
    Action, Chain, Condition, Effect, Family, Field, Hook, Intervals, Line, Listener, Lookup, Name, Network, Policy,
    Rejection, Rule, Ruleset, Table, TableFamily, Value, address,
};

/// The deepest chain of jumps that is followed. The kernel allows 16 (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 32;
/// A walk asks each rule so many times on average: chains that each jump to the next several times would take forever.
const MOST_ASKED_OF_EACH: usize = 16;
/// Of few rules it asks more, and of many less: asking takes a microsecond, and a look is several walks.
const MOST_ASKED: RangeInclusive<usize> = 200_000..=300_000;
/// So many cases of a lookup that are for other packets take as long as a rule.
const MISSED_AT_ONCE: usize = 32;
/// The same where steps are recorded. Each takes two hundred bytes, but they are about one connection, which is in few sets
/// at once.
const MOST_RECORDED_OF_EACH: usize = 8;
const MOST_RECORDED: RangeInclusive<usize> = 50_000..=100_000;
/// The most questions that can be told.
const MOST_QUESTIONS: usize = 1 << 15;
/// The most decisions of a walk: a map may have 10,000 elements. With the connections that they are about, they take a
/// kilobyte each.
const MOST_DECISIONS: usize = 10 << 10;
/// With this many decisions, shares of the same one are added.
const MANY_DECISIONS: usize = 2048;
/// When more sets of connections than this have left a base chain, they are merged.
const MOST_LEFT: usize = 64;
/// The most sets of connections that go on from a base chain to the next: each is of another kind.
const MOST_KINDS: usize = 16;

/// The chain that connections should get to.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'g> {
    /// Its table, or one of the same name, family and subsystem.
    pub table: &'g Table,
    pub chain: &'g str,
}

/// The fate of connections on their way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk<'a> {
    /// Everything that was decided about them on the way, in the order in which the kernel does.
    pub decisions: Vec<Outcome<'a>>,
    /// The fate of connections that nothing has dropped.
    pub arrived: Vec<Outcome<'a>>,
    /// The open questions, in the order in which they arose.
    pub questions: Vec<Open<'a>>,
    /// Every rule and policy that they were compared with, in the kernel's order, if that was recorded.
    pub steps: Vec<Step<'a>>,
}

pub(super) type SendRejection<'a, 'g> = fn(&mut Walker<'a, 'g>, &State<'a>, Hook, Rejection) -> Vec<State<'a>>;

/// A visit to a chain, and its results.
#[derive(Default)]
struct Visit<'a> {
    /// The number of jumps and gotos that lead here from the base chain.
    depth: usize,
    /// The number of steps that had been recorded before the current rule.
    steps_before: usize,
    /// Packets that go on to the next rule.
    next: Vec<State<'a>>,
    /// Packets that return to the chain that jumped here.
    returned: Vec<State<'a>>,
    /// Packets that have left the base chain.
    left_chain: Vec<State<'a>>,
    /// The number of them when they were merged last.
    merged: usize,
}

pub(super) struct Walker<'a, 'g> {
    ruleset: &'a Ruleset,
    /// The family of the packets; none for ARP.
    family: Option<Family>,
    watched: Option<Watched<'g>>,
    pub(super) network: &'g Network,
    /// The devices by which packets to some addresses leave.
    pub(super) routes: &'g [(IpAddr, Option<Name>)],
    /// The device by which packets to clients leave, if it isn't the one by which theirs arrive.
    pub(super) back: Option<&'g Name>,
    /// Takes the rejection of a first packet at a hook back to its sender, and returns those that get there; none: they
    /// aren't followed.
    pub(super) send_rejection: Option<SendRejection<'a, 'g>>,
    decisions: Vec<Outcome<'a>>,
    /// With so many decisions, shares of the same one are added.
    many_decisions: usize,
    /// The number of decisions that were made.
    decided: usize,
    questions: Vec<Open<'a>>,
    /// The number of questions.
    questioned: usize,
    /// The rules that the connections were compared with, if they are recorded.
    steps: Option<Vec<Step<'a>>>,
    hook: Hook,
    packet: Leg,
    holdings: Holdings<'a, 'g>,
    /// The chains of each table, by their names: there may be thousands.
    chains: HashMap<(usize, &'a Name), &'a Chain>,
    /// The number of rules that are still asked.
    left_to_ask: usize,
}

impl<'a, 'g> Walker<'a, 'g> {
    /// A walker that watches whether connections reach a chain or, without such a chain, records each step.
    pub(super) fn new(
        ruleset: &'a Ruleset,
        family: Option<Family>,
        watched: Option<Watched<'g>>,
        network: &'g Network,
    ) -> Self {
        // Room for the steps of two packets, so that the list isn't copied as it grows. Memory that isn't touched costs
        // nothing.
        let rules = ruleset.tables.iter().flat_map(Table::rules).count();
        let steps = || Vec::with_capacity(2 * rules);
        let (of_each, most) = match watched {
            Some(_) => (MOST_ASKED_OF_EACH, MOST_ASKED),
            None => (MOST_RECORDED_OF_EACH, MOST_RECORDED),
        };
        Self {
            ruleset,
            family,
            watched,
            network,
            routes: &[],
            back: None,
            send_rejection: None,
            decisions: Vec::new(),
            many_decisions: MANY_DECISIONS,
            decided: 0,
            // See `OF_MANY`.
            questions: vec![Open::Other],
            questioned: 1,
            steps: watched.is_none().then(steps),
            hook: Hook::Prerouting,
            packet: Leg::First,
            holdings: Holdings::new(network),
            chains: ruleset
                .tables
                .iter()
                .flat_map(|table| table.chains.iter().map(|chain| (key(table, &chain.name), chain)))
                .collect(),
            left_to_ask: (of_each * rules).clamp(*most.start(), *most.end()),
        }
    }

    /// `is_any_alive`: any connection that passed the watched chain may live.
    pub(super) fn finish(self, arrived: Vec<Outcome<'a>>, is_any_alive: bool) -> Walk<'a> {
        let mut decisions = join_losses(add_shares(self.decisions));
        // Those that aren't followed may live.
        let is_any_alive = is_any_alive || decisions.iter().any(|outcome| outcome.treatment == Treatment::Unfollowed);
        let mut after_watched = decisions.iter_mut().filter(|outcome| outcome.after_watched);
        if !is_any_alive && let Some(last) = after_watched.rfind(|outcome| outcome.treatment == Treatment::Dropped) {
            // It drops whatever the others let through.
            last.doubt = Doubt::NONE;
        }
        Walk { decisions, arrived, questions: self.questions, steps: self.steps.unwrap_or_default() }
    }

    /// Takes connections through the base chains of a hook.
    pub(super) fn pass_hook(&mut self, hook: Hook, states: Vec<State<'a>>) -> Vec<State<'a>> {
        let slots = match self.family {
            Some(family) => chains_at(self.ruleset, family, hook),
            None => chains_of(self.ruleset, hook, |of| matches!(of, TableFamily::Arp | TableFamily::Netdev)),
        };
        let mut states = self.pass_base_chains(hook, slots, states);
        for state in &mut states {
            state.is_seen |= hook != Hook::Ingress;
            state.translate_pending(hook);
        }
        states
    }

    pub(super) fn pass_bridge_hook(&mut self, hook: Hook, states: Vec<State<'a>>) -> Vec<State<'a>> {
        let slots = chains_of(self.ruleset, hook, |of| of == TableFamily::Bridge);
        self.pass_base_chains(hook, slots, states)
    }

    /// Runs `take`, and keeps the steps that it records only if it decides something.
    pub(super) fn look_for_decisions(&mut self, take: impl FnOnce(&mut Self) -> Vec<State<'a>>) -> Vec<State<'a>> {
        let decided = self.decided;
        let steps = self.steps.as_ref().map_or(0, Vec::len);
        let taken = take(self);
        if let Some(recorded) = self.steps.as_mut().filter(|_| self.decided == decided) {
            recorded.truncate(steps);
        }
        taken
    }

    fn pass_base_chains(&mut self, hook: Hook, slots: Vec<Slot<'a>>, mut states: Vec<State<'a>>) -> Vec<State<'a>> {
        self.hook = hook;
        let Some(first) = states.first() else {
            return states;
        };
        self.packet = first.packet;
        for mut place in places(slots) {
            // Where the order isn't known, chains for other packets are left out.
            if !is_one_table(&place) {
                let is_nat = place.iter().any(Slot::is_nat);
                let packets: Vec<Connections> = states.iter().map(|state| state.with_unknown_fields(is_nat)).collect();
                place.retain(|slot| packets.iter().any(|packets| may_decide(slot, packets)));
            }
            for orders in orders(&place) {
                states = self.pass_in_each_order(&orders, states);
            }
        }
        states
    }

    /// Takes connections through base chains in each order in which they may run, and joins the results.
    fn pass_in_each_order(&mut self, orders: &Orders<'a>, states: Vec<State<'a>>) -> Vec<State<'a>> {
        if let [order] = orders.known.as_slice() {
            return order.iter().fold(states, |states, slot| self.pass_base_chain(*slot, states));
        }
        let before = mem::take(&mut self.decisions);
        let mut steps = None;
        let mut ways = Vec::new();
        for order in &orders.known {
            let arrived = order.iter().fold(states.clone(), |states, slot| self.pass_base_chain(*slot, states));
            ways.push((mem::take(&mut self.decisions), arrived));
            // The steps in one order are enough.
            steps = steps.or(self.steps.take());
        }
        self.steps = steps;
        self.decisions = before;
        // A result that every order has doesn't depend on the order.
        let question = self.add_question(match orders.known.as_slice() {
            [first, second, ..] if !orders.are_more => {
                let differing = first.iter().zip(second).find(|(one, two)| one != two);
                differing.map_or(Open::Orders, |(one, two)| Open::Order(*one, *two))
            }
            _ => Open::Orders,
        });
        let answers = ways.len() + usize::from(orders.are_more);
        let (mut decisions, mut arrived) = (Vec::new(), Vec::new());
        for (answer, (decided, states)) in ways.into_iter().enumerate() {
            let part = |doubt: &Doubt| doubt.divided(question, answers).swap_remove(answer);
            decisions.extend(decided.into_iter().map(|outcome| Outcome { doubt: part(&outcome.doubt), ..outcome }));
            arrived.extend(states.into_iter().map(|state| State { doubt: part(&state.doubt), ..state }));
        }
        if orders.are_more {
            decisions.extend(arrived.iter().map(|state| state.outcome(Treatment::NotUnderstood, None)));
        }
        self.decisions.extend(add_shares(decisions));
        merge_states(arrived)
    }

    /// Records a question that the rules leave open, and returns its index.
    pub(super) fn add_question(&mut self, open: Open<'a>) -> usize {
        if self.questions.len() < MOST_QUESTIONS {
            self.questions.push(open);
        }
        self.questioned += 1;
        self.questioned - 1
    }

    pub(super) fn decide(&mut self, state: &State<'a>, at: Place<'a>, treatment: Treatment) {
        self.decided += 1;
        self.decisions.push(state.outcome(treatment, Some(at)));
        if self.decisions.len() > self.many_decisions {
            self.decisions = add_shares(mem::take(&mut self.decisions));
            self.many_decisions = MANY_DECISIONS.max(2 * self.decisions.len());
            if self.decisions.len() > MOST_DECISIONS {
                self.left_to_ask = 0;
            }
        }
    }

    fn record(&mut self, depth: usize, at: Place<'a>, matched: Matched<'a>) {
        let (hook, packet) = (self.hook, self.packet);
        if let Some(steps) = &mut self.steps {
            steps.push(Step { packet, hook, depth, at, matched });
        }
    }

    /// Records a step for a rule. Where it isn't known how the connection reaches a chain, one visit to the chain asks a
    /// rule several times: that is one step, and if the answers differ, the match isn't known.
    fn record_or_join(&mut self, visit: &Visit<'a>, at: Place<'a>, matched: Matched<'a>) {
        let depth = visit.depth;
        let steps = self.steps.as_mut().and_then(|steps| steps.get_mut(visit.steps_before..));
        let mut same = steps.into_iter().flatten().rev();
        let Some(step) = same.find(|step| step.depth == depth && step.at == at) else {
            return self.record(depth, at, matched);
        };
        let reason = match (&step.matched, matched) {
            (Matched::Perhaps(..), _) | (Matched::Yes(_), Matched::Yes(_)) | (Matched::No(_), Matched::No(_)) => return,
            (_, Matched::Perhaps(reason)) => {
                step.matched = Matched::Perhaps(reason);
                return;
            }
            (Matched::Yes(_), Matched::No(reason)) => reason,
            (Matched::No(reason), Matched::Yes(_)) => reason.clone(),
        };
        step.matched = Matched::Perhaps(reason.clone());
        self.add_question(Open::Match(at, reason, self.packet, self.hook));
    }

    fn pass_base_chain(&mut self, slot: Slot<'a>, states: Vec<State<'a>>) -> Vec<State<'a>> {
        let (mut next, entering): (Vec<_>, Vec<_>) =
            states.into_iter().partition(|state| slot.is_nat() && state.is_settled);
        let entering = self.split_by_devices(slot, entering, &mut next);
        let entering = entering.into_iter().flat_map(|state| self.split_by_view(slot, state)).collect();
        let out = self.pass_chain(slot.table, slot.chain, entering, 0);
        for state in out.returned {
            if slot.base.policy == Policy::Accept {
                next.push(state);
                continue;
            }
            self.record(0, Place::Policy(slot), Matched::Yes(&Action::Drop));
            self.decide(&state, Place::Policy(slot), Treatment::Dropped);
        }
        next.extend(out.left_chain);
        next.iter_mut().for_each(|state| state.show_tracking(true));
        let mut next = merge_states(next);
        for state in next.drain(MOST_KINDS.min(next.len())..) {
            self.decide(&state, Place::Policy(slot), Treatment::Unfollowed);
        }
        next
    }

    /// Returns the packets whose devices a base chain is for. All others go on.
    fn split_by_devices(
        &mut self,
        slot: Slot<'a>,
        states: Vec<State<'a>>,
        next: &mut Vec<State<'a>>,
    ) -> Vec<State<'a>> {
        let Some(devices) = &slot.chain.devices else {
            return states;
        };
        let field = if self.hook == Hook::Egress { Field::OutInterface } else { Field::InInterface };
        let mut seen = Vec::new();
        for state in states {
            let (of_these, of_others) = state.split(field, devices);
            if of_these.is_some() && of_others.is_some() && self.steps.is_some() {
                let policy = Place::Policy(slot);
                self.add_question(Open::Match(policy, Reason::Device(self.hook), self.packet, self.hook));
                self.record(0, policy, Matched::Perhaps(Reason::Device(self.hook)));
            }
            seen.extend(of_these);
            next.extend(of_others);
        }
        seen
    }

    /// A packet as a base chain sees it: before or after connection tracking, and before or after it is translated back.
    /// Where the priorities are equal, it may be either.
    fn split_by_view(&mut self, slot: Slot<'a>, state: State<'a>) -> Vec<State<'a>> {
        let priority = slot.order().0;
        // On a bridge, connection tracking neither sees nor translates packets.
        let hook = if slot.table.family == TableFamily::Bridge { Hook::Ingress } else { self.hook };
        let side = state.order_to_translation(hook, priority);
        let translated =
            self.split_by_side(side, Open::Side(slot, "translates the packet"), state, |state, is_after| {
                if is_after {
                    state.translate_pending(hook);
                }
            });
        let mut seen = Vec::new();
        for mut state in translated.into_iter().rev() {
            let side = state.order_to_tracking(hook, priority);
            state.is_seen |= side == Ordering::Greater;
            seen.extend(self.split_by_side(
                side,
                Open::Side(slot, "tracks the connection"),
                state,
                State::show_tracking,
            ));
        }
        seen
    }

    /// A packet before or after something that the kernel does or, where it isn't known which, both. `pass` gets whether
    /// it is after.
    fn split_by_side(
        &mut self,
        side: Ordering,
        open: Open<'a>,
        mut state: State<'a>,
        pass: impl Fn(&mut State<'a>, bool),
    ) -> Vec<State<'a>> {
        if side != Ordering::Equal {
            pass(&mut state, side == Ordering::Greater);
            return vec![state];
        }
        let question = self.add_question(open);
        let mut other = state.clone();
        pass(&mut state, false);
        pass(&mut other, true);
        state.doubt = state.doubt.affirmed(question);
        other.doubt = other.doubt.denied(question);
        vec![state, other]
    }

    fn pass_chain(&mut self, table: &'a Table, chain: &'a Chain, mut now: Vec<State<'a>>, depth: usize) -> Visit<'a> {
        let mut visit = Visit { depth, ..Visit::default() };
        let is_watched = self.watched.is_some_and(|watched| chain.name == *watched.chain && watched.table.is(table));
        if is_watched {
            for state in &mut now {
                state.after_watched = true;
                state.left = None;
            }
        }
        let asked = if self.watched.is_some() { count_deciding_rules(chain) } else { chain.rules.len() };
        for line in Line::all(table, chain).take(asked) {
            if now.is_empty() {
                break;
            }
            // Such a rule matters only where each step is recorded.
            if !line.rule.does_something() && self.steps.is_none() {
                continue;
            }
            let asks = 1 + line.rule.lookup.as_ref().map_or(0, |lookup| lookup.cases.len() / MISSED_AT_ONCE);
            let Some(left) = self.left_to_ask.checked_sub(now.len() * asks) else {
                now.drain(..).for_each(|state| self.decide(&state, Place::Rule(line), Treatment::Unfollowed));
                break;
            };
            self.left_to_ask = left;
            // Most rules are for other connections. This check doesn't move the states.
            if self.steps.is_none() && now.iter().all(|state| state.connections.all_miss(&line.rule.conditions)) {
                continue;
            }
            visit.steps_before = self.steps.as_ref().map_or(0, Vec::len);
            let before = now.len();
            for state in now.drain(..) {
                // Those that go on to the next rule are to be few, without being merged.
                let room = MOST_STATES.saturating_sub(before + visit.next.len());
                self.pass_rule(line, state, room, &mut visit);
            }
            mem::swap(&mut now, &mut visit.next);
            if now.len() > before {
                now = merge_states(now);
            }
            // The base chain merges them in the end, but 10,000 rules may each let others through. Those that the watched
            // chain reports carry the rule that let them through.
            if visit.left_chain.len() > MOST_LEFT.max(2 * visit.merged)
                && !visit.left_chain.iter().any(State::is_reported)
            {
                visit.left_chain = merge_states(visit.left_chain);
                visit.merged = visit.left_chain.len();
            }
        }
        visit.returned.extend(now);
        if is_watched {
            // A rule of the watched chain lets these bypass the proxy.
            let ended = visit.returned.iter().chain(&visit.left_chain).filter(|state| !state.is_settled);
            let bypassing = ended.filter_map(|state| Some(state.outcome(Treatment::Accepted, Some(state.left?))));
            self.decisions.extend(bypassing);
        }
        visit
    }

    fn pass_rule(&mut self, line: Line<'a>, state: State<'a>, room: usize, visit: &mut Visit<'a>) {
        let (rule, questioned) = (line.rule, self.questioned);
        let (mut matched, matching) = self.divide(line, &rule.conditions, state, room, &mut visit.next);
        let mut taken = Vec::new();
        match (&rule.lookup, matching) {
            (_, None) => {}
            (None, Some(matching)) => taken.push((matching, None)),
            (Some(lookup), Some(matching)) => {
                let by_case = self.divide_by_cases(line, lookup, matching, &mut taken, &mut visit.next);
                if !matches!(matched, Matched::Perhaps(_)) {
                    matched = by_case;
                }
            }
        }
        // Some of them match, as is known, but not which one the connection is that was asked about.
        if let Matched::Perhaps(reason) = &matched
            && self.questioned == questioned
            && self.steps.is_some()
        {
            self.add_question(Open::Match(Place::Rule(line), reason.clone(), self.packet, self.hook));
        }
        self.record_or_join(visit, Place::Rule(line), matched);
        for (matching, value) in taken {
            self.apply_rule(line, matching, value, visit);
        }
    }

    /// Divides packets by the cases of a rule's lookup. Returns whether they match; adds those that do to `taken`, with the
    /// map's value for them, and all others to `rest`.
    fn divide_by_cases(
        &mut self,
        line: Line<'a>,
        lookup: &'a Lookup,
        state: State<'a>,
        taken: &mut Vec<(State<'a>, Option<&'a Value>)>,
        rest: &mut Vec<State<'a>>,
    ) -> Matched<'a> {
        let no = || Matched::No(Reason::Lookup(lookup, state.connections.clone()));
        let (mut matched, mut now, mut held) = (no(), vec![state.clone()], Vec::new());
        for case in lookup.cases.iter() {
            if now.iter().all(|state| state.connections.all_miss(&case.conditions)) {
                continue;
            }
            self.left_to_ask = self.left_to_ask.saturating_sub(now.len());
            for state in mem::take(&mut now) {
                let room = MOST_STATES.saturating_sub(rest.len() + now.len());
                let (of_case, matching) = self.divide(line, &case.conditions, state, room, &mut now);
                held.extend(matching.map(|matching| (matching, case.value.as_ref())));
                matched = match (matched, of_case) {
                    (matched @ Matched::Perhaps(_), _) | (matched, Matched::No(_)) => matched,
                    (_, Matched::Yes(action)) => Matched::Yes(case.action().unwrap_or(action)),
                    (_, perhaps) => perhaps,
                };
            }
        }
        if !lookup.negated {
            rest.extend(now);
            taken.extend(held);
            return matched;
        }
        taken.extend(now.into_iter().map(|state| (state, None)));
        rest.extend(held.into_iter().map(|(state, _)| state));
        match matched {
            Matched::Yes(_) => no(),
            Matched::No(_) => Matched::Yes(&line.rule.action),
            perhaps => perhaps,
        }
    }

    /// Divides packets by conditions of a rule. Returns whether they match, and those that do; adds all others to `rest`.
    fn divide(
        &mut self,
        line: Line<'a>,
        conditions: &'a [Condition],
        state: State<'a>,
        room: usize,
        rest: &mut Vec<State<'a>>,
    ) -> (Matched<'a>, Option<State<'a>>) {
        let at = Place::Rule(line);
        let mut split = match split_by_conditions(line.table, conditions, &state, self.hook, &mut self.holdings) {
            Ok(split) => split,
            Err(reason) => {
                rest.push(state);
                return (Matched::No(reason), None);
            }
        };
        let is_open = split.is_open;
        let matched = split.reason.take().map_or(Matched::Yes(&line.rule.action), Matched::Perhaps);
        let question = match &matched {
            Matched::Perhaps(reason) if is_open => {
                Some(self.add_question(Open::Match(at, reason.clone(), self.packet, self.hook)))
            }
            _ => None,
        };
        let (matching, others) = split.parts(state, question, room);
        rest.extend(others);
        (matched, Some(matching))
    }

    /// Does to packets what a rule does that they match, with this value of its map.
    fn apply_rule(&mut self, line: Line<'a>, mut matching: State<'a>, value: Option<&'a Value>, visit: &mut Visit<'a>) {
        let at = Place::Rule(line);
        let action = match value {
            Some(Value::Action(action)) => action,
            Some(Value::Mark(field, mark)) => {
                matching.set(*field, Intervals::one((*mark).into()));
                &line.rule.action
            }
            None => &line.rule.action,
        };
        for effect in &line.rule.effects {
            let goes_on = match effect {
                Effect::Untrack => self.untrack(at, &mut matching),
                Effect::Mark { field, to, .. } if !matching.set_mark(*field, *to) => return visit.next.push(matching),
                // Neighbours ignore packets with another hop limit than theirs.
                Effect::Mark { .. } => self.drop_if(matching.is_ignored(), at, &mut matching),
                Effect::Other(_) => true,
            };
            if !goes_on {
                return;
            }
        }
        self.apply_action(line, matching, action, visit);
    }

    /// Exempts a packet from connection tracking, unless that has an entry for it already (`nft_notrack_eval` in
    /// net/netfilter/nft_ct.c, `xt_ct_target` in xt_CT.c). Returns true if the packet goes on.
    fn untrack(&mut self, at: Place<'a>, state: &mut State<'a>) -> bool {
        if !state.is_invalid() {
            return true;
        }
        // A packet that was to be translated back isn't, so it reaches the wrong host, or comes from a wrong address.
        if !state.flow.pending.is_empty() && !self.drop_if(state.is_translated(), at, state) {
            return false;
        }
        if state.packet == Leg::First {
            self.decide(state, at, Treatment::Untracked);
            state.taken = Some((at, None));
        }
        state.is_settled = true;
        state.is_seen = true;
        state.tracked = CtState::Untracked;
        state.show_tracking(true);
        true
    }

    /// Drops a packet if `is_lost`; if that isn't known, leaves it open. Returns true if the packet goes on.
    fn drop_if(&mut self, is_lost: Option<bool>, at: Place<'a>, state: &mut State<'a>) -> bool {
        match is_lost {
            Some(true) => self.decide(state, at, Treatment::Dropped),
            Some(false) => {}
            None => self.leave_open(at, state),
        }
        is_lost != Some(true)
    }

    /// Leaves the effect of a rule's action on a packet open. The packet goes on as if there were none.
    fn leave_open(&mut self, at: Place<'a>, state: &mut State<'a>) {
        self.decide(state, at, Treatment::NotUnderstood);
        let question = self.add_question(Open::Other);
        state.doubt = state.doubt.denied(question);
    }

    fn apply_action(&mut self, line: Line<'a>, mut state: State<'a>, action: &'a Action, visit: &mut Visit<'a>) {
        let at = Place::Rule(line);
        match action {
            Action::Continue | Action::ByCase(_) => visit.next.push(state),
            Action::Accept => {
                state.left = Some(at);
                visit.left_chain.push(state);
            }
            Action::Reject(rejection) if state.packet == Leg::First => self.reject(&state, at, *rejection),
            Action::Drop | Action::Reject(_) => self.decide(&state, at, Treatment::Dropped),
            Action::Return => {
                state.left = Some(at);
                visit.returned.push(state);
            }
            Action::Redirect(_) | Action::Nat(_) if state.packet != Leg::First => {
                if !state.is_settled {
                    // The packet's connection isn't tracked. If the packet is changed, the connection loses it.
                    let mut translated = state.clone();
                    translate(&mut translated, self.hook, at, action, self.network);
                    if !self.drop_if(translated.is_translated(), at, &mut state) {
                        return;
                    }
                    state.is_settled = true;
                }
                visit.left_chain.push(state);
            }
            Action::Redirect(_) | Action::Nat(_) => {
                if self.may_answer_elsewhere(&state, action) {
                    self.leave_open(at, &mut state);
                }
                self.decide(&state, at, Treatment::Translated);
                state.is_settled = true;
                translate(&mut state, self.hook, at, action, self.network);
                match self.watched {
                    None => visit.left_chain.push(state),
                    // Later rules' words about source ports are about clients.
                    Some(_) if state.after_watched && state.is_redirected() => {
                        visit.left_chain.push(state.with_client_ports());
                    }
                    // Where another rule has sent them doesn't matter to the watched chain.
                    Some(_) => {}
                }
            }
            Action::Tproxy { port, is_xt } if !self.may_take_transparently(*port, &state) => {
                if *is_xt {
                    self.decide(&state, at, Treatment::Dropped);
                } else {
                    visit.next.push(state);
                }
            }
            Action::NotUnderstood(_) | Action::Tproxy { .. } => {
                self.leave_open(at, &mut state);
                visit.next.push(state);
            }
            Action::Jump(name) | Action::Goto(name) => {
                let target = self.chains.get(&key(line.table, name)).copied();
                let Some(target) = target.filter(|_| visit.depth < DEEPEST) else {
                    let treatment = if target.is_some() { Treatment::Unfollowed } else { Treatment::NotUnderstood };
                    self.decide(&state, at, treatment);
                    return visit.next.push(state);
                };
                let through = self.pass_chain(line.table, target, vec![state], visit.depth + 1);
                visit.left_chain.extend(through.left_chain);
                if matches!(action, Action::Jump(_)) {
                    visit.next.extend(through.returned);
                } else {
                    let left = Some(at);
                    let returned = through.returned.into_iter();
                    visit.returned.extend(returned.map(|state| State { left, ..state }));
                }
            }
        }
    }

    /// Drops a first packet, and tells its sender, if the rejection gets there.
    fn reject(&mut self, state: &State<'a>, at: Place<'a>, rejection: Rejection) {
        // A bridge sends it from under IP's hooks.
        let Some(send) = self.send_rejection.filter(|_| at.table().family != TableFamily::Bridge) else {
            return self.decide(state, at, Treatment::Dropped);
        };
        let (hook, packet) = (self.hook, self.packet);
        let told = self.look_for_decisions(|walker| send(walker, state, hook, rejection));
        (self.hook, self.packet) = (hook, packet);
        for told in told {
            self.decide(&State { doubt: told.doubt, ..state.clone() }, at, Treatment::Dropped);
        }
    }

    /// Returns true if a transparent listener may be on this port or, without one, on the packet's own, or if the client's
    /// socket, to which a reply goes, may be transparent. A server's socket is if its listener is
    /// (`nf_tproxy_sk_is_transparent` in net/netfilter/nf_tproxy.h).
    fn may_take_transparently(&self, port: Option<u16>, state: &State<'_>) -> bool {
        let ports = port.map(|port| Intervals::one(port.into()));
        let ports = ports.as_ref().or(state.connections.get(Field::DestinationPort));
        let is_there = |listener: &Listener| {
            let number = u128::from(listener.port);
            listener.is_transparent != Some(false) && ports.is_none_or(|ports| ports.meets(&[(number, number)]))
        };
        state.packet == Leg::Reply
            || self.network.listeners_not_known.is_some()
            || self.network.listeners.iter().any(is_there)
    }

    /// Returns true if a connection to a server of this namespace gets a source address that the server's packets may
    /// not reach: another host's on lo, or one without a route.
    fn may_answer_elsewhere(&self, state: &State<'_>, action: &Action) -> bool {
        let Action::Nat(nat) = action else {
            return false;
        };
        let Some(to) = nat.address() else {
            return false;
        };
        let mut own = self.network.addresses.iter();
        let is_others = self.network.links_not_known.is_none() && own.all(|known| known.address != to);
        let is_on_lo = |field| state.connections.get(field) == Some(&lo_name());
        let is_routed = || self.routes.iter().any(|(address, device)| *address == to && device.is_some());
        is_others
            && match self.hook {
                Hook::Input => is_on_lo(Field::InInterface) || !is_routed(),
                Hook::Postrouting => is_on_lo(Field::OutInterface),
                _ => false,
            }
    }
}

/// The number of rules of a chain up to and including the last one that decides something. In a base chain whose policy is
/// accept, a rule that only accepts or returns decides nothing.
fn count_deciding_rules(chain: &Chain) -> usize {
    let lets_through = chain.base.is_some_and(|base| base.policy == Policy::Accept);
    let decides = |rule: &Rule| match rule.action {
        Action::Accept | Action::Return => !lets_through || rule.has_lasting_effect(),
        _ => rule.does_something(),
    };
    chain.rules.iter().rposition(decides).map_or(0, |last| last + 1)
}

fn key<'a>(table: &'a Table, name: &'a Name) -> (usize, &'a Name) {
    (std::ptr::from_ref(table).addr(), name)
}

/// Returns true if a base chain may do anything with these packets.
fn may_decide(slot: &Slot<'_>, packets: &Connections) -> bool {
    let mut rules = slot.chain.rules.iter().filter(|rule| rule.does_something());
    let may_meet = |condition| packets.meeting(slot.table, condition) != Meeting::None;
    slot.base.policy == Policy::Drop || rules.any(|rule| rule.conditions.iter().all(may_meet))
}

/// Has a nat rule's action change connections.
///
/// A redirected connection goes to this host: on its way out to the loopback address, on its way in to an address of
/// the device (`nf_nat_redirect_ipv4` and `nf_nat_redirect_ipv6` in net/netfilter/nf_nat_redirect.c).
fn translate<'a>(state: &mut State<'a>, hook: Hook, at: Place<'a>, action: &'a Action, network: &Network) {
    let is_source = matches!(hook, Hook::Input | Hook::Postrouting);
    let (port, field): (Field, fn(Family) -> Field) =
        if is_source { (Field::SourcePort, Field::Source) } else { (Field::DestinationPort, Field::Destination) };
    let (to, ports) = match action {
        Action::Redirect(ports) => (None, *ports),
        Action::Nat(nat) => (nat.address(), nat.ports),
        _ => (None, None),
    };
    let is_redirection = matches!(action, Action::Redirect(_));
    let devices = state.connections.get(Field::InInterface).cloned().unwrap_or_default();
    let mut fields = Vec::from(Family::ALL.map(|family| {
        let field = field(family);
        let to = match to {
            Some(known) => Intervals::one(address(known)),
            None if is_redirection && hook == Hook::Output => Intervals::one(address(family.localhost())),
            None if is_redirection => {
                network.redirect_addresses(family, &devices).unwrap_or_else(|| other_hosts(family))
            }
            None => field.any(),
        };
        (field, to)
    }));
    match ports {
        Some((first, last)) => fields.push((port, Intervals::new([(first.into(), last.into())]))),
        // A destination's port stays as it is.
        None if is_redirection || (to.is_some() && !is_source) => {}
        None => fields.push((port, port.any())),
    }
    state.translate(is_source, fields);
    if !is_source {
        state.taken = Some((at, Some(action)));
    }
}

#[cfg(test)]
mod tests;
