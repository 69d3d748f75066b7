"""How user turns begin, when a target is made to write both sides of a conversation.

Left to itself a chat model writes much the same few questions; what the first words ask for is what varies them.
"""

OPENERS = (
    "What", "What is the", "What are some", "How", "How do I", "How can I", "How does", "Why", "Why do",
    "When", "Where", "Who was", "Which", "Can you", "Could you", "I", "I am", "I have", "I want to", "I need",
    "My", "The", "In", "Write", "Write a short story about", "Write a poem about", "Write an email to",
    "Write a blog post about", "Write a speech", "Write a review of", "Write a letter", "Explain",
    "Explain the concept of", "Describe", "Describe a", "Give me", "Give three", "List", "List five",
    "Suggest", "Compare", "Compose", "Create", "Design", "Develop a plan", "Draft", "Discuss", "Do you",
    "Is it", "Are there", "Should I", "If", "If you were", "Imagine", "Imagine you are", "Pretend to be",
    "Act as", "You are a", "Let's", "Help me", "Help me write", "Tell me about", "Tell me a", "Recommend",
    "Summarize", "Rewrite", "Edit", "Correct", "Translate", "Classify", "Identify", "Extract", "Analyze",
    "Evaluate", "Provide", "Please", "Outline", "Plan", "Solve", "Calculate", "A train", "A farmer has",
    "There are", "Two", "Three friends", "Given", "Given the following", "Suppose", "Find", "Prove",
    "Implement", "Write a function", "Write a Python program", "Write a script", "Write a SQL query",
    "In Python,", "Debug", "What does this code", "Define", "Name", "Was", "Did", "Does", "Consider",
    "Think of", "Invent", "Brainstorm", "Make", "Prepare", "Teach me", "Hello", "Hi", "Thanks", "As a",
    "During", "For my", "Everyone", "Some people", "People", "We", "Our", "Children", "Scientists", "History",
    "The best way to", "The most", "One day", "Once upon a time", "In the future", "Today", "Yesterday",
    "Last week", "Next month", "After", "Before", "Without", "Because", "Although", "Between", "Can a",
    "Could a", "Would you", "Will", "Have you", "Has", "Tips for", "Ways to", "Ideas for", "Steps to",
    "Advice on", "Pros and cons of", "The difference between", "The history of", "The role of",
    "The impact of",
)  # fmt: skip
