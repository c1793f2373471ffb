// Sediment for OpenCode: gives each prompt the memories that fit it and each failed command its
// known fix, and keeps what was said.
import { spawn } from "node:child_process"

const COMMAND = ["sediment"]

const start = (input, output, detached) => {
  const [program, ...words] = COMMAND
  const stdio = ["pipe", output, "ignore"]
  const child = spawn(program, [...words, "hook"], { stdio, detached, windowsHide: true })
  child.on("error", () => {})
  child.stdin.on("error", () => {})
  child.stdin.end(JSON.stringify({ client: "opencode", ...input }))
  return child
}

const answer = (input, milliseconds) =>
  new Promise((resolve) => {
    const child = start(input, "pipe", false)
    let printed = ""
    const giveUp = setTimeout(() => (child.kill(), resolve("")), milliseconds)
    child.stdout.on("data", (data) => (printed += data))
    child.on("error", () => resolve(""))
    child.on("close", () => (clearTimeout(giveUp), resolve(printed)))
  })

// OpenCode puts quotes around a message that came from the command line.
const unquoted = (text) => (/^"[^]*"$/.test(text) ? text.slice(1, -1) : text)

export const Sediment = async ({ directory }) => {
  const sources = new Map() // of each session, how its next prompt begins it; "" if it does not

  const context = async (input) => {
    try {
      return JSON.parse(await answer(input, 8000)).hookSpecificOutput.additionalContext
    } catch {
      return ""
    }
  }

  return {
    "chat.message": async (input, output) => {
      const typed = output.parts.filter((part) => part.type === "text" && !part.synthetic)
      if (!typed.length) return
      const session = { session_id: input.sessionID, cwd: directory }
      const prompt = unquoted(typed.map((part) => part.text).join("\n"))
      const events = [{ hook_event_name: "UserPromptSubmit", prompt }]
      const source = sources.get(input.sessionID) ?? "startup"
      if (source) events.unshift({ hook_event_name: "SessionStart", source })
      sources.set(input.sessionID, "")
      const found = [] // one after the other: the prompt leaves out what the start has shown
      for (const event of events) found.push(await context({ ...event, ...session }))
      const text = found.filter(Boolean).join("\n")
      // The id sorts behind the user's part; a synthetic part is no title and is not shown.
      const id = output.parts.at(-1).id.slice(0, -6) + "zzzzzz"
      const place = { id, sessionID: input.sessionID, messageID: output.message.id }
      if (text) output.parts.push({ ...place, type: "text", synthetic: true, text })
    },
    "tool.execute.after": async (input, output) => {
      if (input.tool !== "bash" || !output.metadata?.exit) return
      const place = { session_id: input.sessionID, cwd: directory, command: input.args?.command }
      const error = output.output.slice(-8000) // tools tell their errors last
      const text = await context({ hook_event_name: "PostToolUseFailure", error, ...place })
      if (text) output.output += `\n${text}`
    },
    event: async ({ event }) => {
      if (event.type === "session.compacted") sources.set(event.properties.sessionID, "compact")
      if (event.type !== "session.idle") return
      const session = { session_id: event.properties.sessionID, cwd: directory }
      start({ hook_event_name: "Stop", ...session }, "ignore", true).unref()
    },
  }
}
